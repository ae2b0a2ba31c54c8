"""Generators that are neither compiled nor captured, and drawing with a seed."""

from parts import require_part

torch = require_part("torch")

from tinytorch.transforms.static_generation import static_generator

DRAWING = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}


def plain(model, **settings):
    """Give a generator with room for 20 new tokens, unless told otherwise."""
    return static_generator(model, **{"max_new_tokens": 20, "compile": False} | settings)


def drawn(seed, draw):
    """Draw with a seed, and leave the random numbers of others alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return draw()
