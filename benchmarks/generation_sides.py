"""What generation.py times: our GPT, also in INT8, PyTorch's, and a plain read of the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import interleaving
import numpy as np
from interleaving import Ratio, Run, Side
from numba import prange

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import BACKENDS, Backend
from tinytorch.core.kernels.numba.compile import THREADS, compiled
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.layers import QuantizedLinear

Shape = tuple[int, int, int, int, int]
"""Vocabulary, width, layers, heads, context."""

QUIET_S = 0.15
"""How long a side in this process waits: until the threads of BLAS, which NumPy uses, sleep."""

# ---------------------------------------------------------------- taking turns


class Here:
    """A side in this process, for what shares its arrays with another one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loops = 0

    def turn(self) -> float:
        """Give the mean seconds of one call, as `interleaving.Side` does."""
        time.sleep(QUIET_S)
        self._run()  # wakes the threads
        self._loops = self._loops or interleaving.calibrate(self._run)
        return interleaving.time_calls(self._run, self._loops)


Replicate = list[dict[str, float]]
"""Seconds of each side, turn by turn."""


def take_turns(sides: Mapping[str, Side | Here], rounds: int) -> Replicate:
    """Let each side have one turn in every round, in random order."""
    rng = np.random.default_rng()
    names = list(sides)
    seconds = []
    for _ in range(rounds):
        order = [names[index] for index in rng.permutation(len(names))]
        found = {name: sides[name].turn() for name in order}
        seconds.append({name: found[name] for name in names})
    return seconds


def times_as_fast(ours: str, other: str, replicates: list[Replicate]) -> Ratio:
    """Give how many times as fast `ours` is: the time of `other` over our time."""
    return interleaving.summarise(
        [[(seconds[other], seconds[ours]) for seconds in replicate] for replicate in replicates]
    )


def median_s(name: str, replicates: list[Replicate]) -> float:
    return float(np.median([seconds[name] for each in replicates for seconds in each]))


# ---------------------------------------------------------------- checks


def check_close(what: str, one: np.ndarray, other: np.ndarray, limit: float) -> None:
    error = np.abs(one - other).max() / np.abs(other).max()
    if not error < limit:
        raise SystemExit(f"{what}: outputs differ by {error:.2e}, so nothing is timed")


def judge(name: str, exact: np.ndarray, found: np.ndarray, least_db: float) -> str:
    """Say how near quantized logits (tokens, vocabulary) are to those of fp32.

    That is how much stronger the signal is than the error made in it, and how often the same token
    is the likeliest.
    """
    noise = np.square(found - exact, dtype=np.float64).sum()
    ratio_db = 10 * np.log10(np.square(exact, dtype=np.float64).sum() / noise)
    if not ratio_db > least_db:
        raise SystemExit(f"{name}: signal to noise is {ratio_db:.1f} dB, so nothing is timed")
    agreement = (exact.argmax(axis=-1) == found.argmax(axis=-1)).mean()
    return f"{ratio_db:.1f} dB, top-1 {agreement:.0%}"


# ---------------------------------------------------------------- our GPT


@lru_cache(maxsize=1)
def random_gpt(shape: Shape) -> GPT:
    """Build the same model in every process; no bias is 0, so that none can be mixed up."""
    rng = np.random.default_rng(0)
    model = GPT(*shape, rng=rng)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            noise = 0.02 * rng.standard_normal(parameter.shape)
            parameter.data = (parameter.data + noise).astype(np.float32)
    return model.eval()


def move(model: GPT) -> None:
    """Give the weights a new place in memory, which can change times by several percent."""
    for parameter in model.parameters():
        parameter.data = parameter.data.copy()


def by_layers() -> tuple[str, Backend]:
    """Give the compiled backend without its compiled step: a kernel for each operation."""
    return "numba by layers", replace(BACKENDS["numba"], decode=None)


class OurDecoding:
    """Decode given tokens after a prompt, one at a time, again and again from the same place."""

    def __init__(
        self, model: GPT, backend: str | Backend, prompt: list[int], decoded: list[int]
    ) -> None:
        self.model = model
        self.backend = backend
        self.prompt = np.array([prompt])
        self.decoded = [np.array([[token]]) for token in decoded]
        self.cache = model.make_cache(1)

    def __call__(self) -> None:
        with use_backend(self.backend):
            self.cache.seq_pos = self.prompt.size
            for token in self.decoded:
                self.model.forward_with_cache(token, self.cache)

    def check(self) -> np.ndarray:
        """Give the logits (tokens, vocabulary) of the prompt and of what is decoded."""
        self.cache.reset()
        with use_backend(self.backend):
            steps = [self.prompt, *self.decoded]
            logits = [self.model.forward_with_cache(ids, self.cache)[0].data[0] for ids in steps]
        return np.concatenate(logits)


def prefilling(model: GPT, backend: str, prompt: list[int], *, last_only: bool = False) -> Run:
    """Give a function that fills a cache with a prompt and gives its logits."""
    ids, cache = np.array([prompt]), model.make_cache(1)

    def prefill() -> np.ndarray:
        cache.reset()
        with use_backend(backend):
            return model.forward_with_cache(ids, cache, last_only=last_only)[0].data[0]

    return prefill


def next_token_steps(model: GPT, backend: str, ids: np.ndarray) -> dict[str, Run]:
    """Give three ways to the logits of the token after `ids` (1, time).

    `uncached` is the plain forward pass, which also gives the logits of every earlier token;
    `last logits` is one without those.
    """
    cache, scratch = model.make_cache(1), model.make_cache(1)
    past, last = ids[:, :-1], ids[:, -1:]
    with use_backend(backend):
        model.forward_with_cache(past, cache)

    def cached() -> np.ndarray:
        cache.seq_pos = past.size
        with use_backend(backend):
            return model.forward_with_cache(last, cache)[0].data[0, -1]

    def uncached() -> np.ndarray:
        with use_backend(backend), no_grad():
            return model(ids).data[0, -1]

    def last_logits() -> np.ndarray:
        scratch.reset()
        with use_backend(backend):
            return model.forward_with_cache(ids, scratch, last_only=True)[0].data[0, -1]

    return {"cached": cached, "uncached": uncached, "last logits": last_logits}


# ---------------------------------------------------------------- INT8


def int8_gpt(model: GPT, mode: str) -> GPT:
    """Give an INT8 copy of a model."""
    return _quantized(model, Quantize(mode))


def int4_gpt(model: GPT) -> GPT:
    """Give a copy of a model with INT4 weights in groups of 32."""
    return _quantized(model, Quantize("weight_only", bits=4, group_size=32))


def _quantized(model: GPT, transform: Quantize) -> GPT:
    workload = Workload("gpt", model, (Tensor(np.zeros((1, 4), np.int64)),))
    return transform.apply(workload, transform.plan(workload))


def whole_numbers(model: GPT) -> list[np.ndarray]:
    """Give the arrays of INT8 that every step reads whole, each once."""
    layers = [each for each in model.modules() if isinstance(each, QuantizedLinear)]
    return [layer.values.data for layer in layers]


# ---------------------------------------------------------------- memory


def step_weights(model: GPT) -> list[np.ndarray]:
    """Give the arrays that every step reads whole: all but the table of positions."""
    table = model.position_embedding.weight
    return [parameter.data for parameter in model.parameters() if parameter is not table]


@compiled
def read_words(words, parts):
    """Add up an array of whole numbers; each part reads its share of it."""
    total = np.int64(0)
    share = (words.size + parts - 1) // parts
    for part in prange(parts):
        mine = words[np.int64(part) * share : min(np.int64(part + 1) * share, words.size)]
        seen = np.int64(0)
        for word in range(mine.size):
            seen += mine[word]
        total += seen
    return total


def reading(arrays: list[np.ndarray]) -> Run:
    """Give a function that only reads these arrays, as fast as memory lets it."""
    words = []
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        words.append(flat[: flat.size // 8 * 8].view(np.int64))

    def read() -> None:
        for each in words:
            read_words(each, THREADS, work=each.size)

    return read


# ---------------------------------------------------------------- PyTorch


def build_torch(
    shape: Shape, prompt: list[int], threads: int
) -> tuple[Run, Callable[[], np.ndarray]]:
    """Build PyTorch's GPT with our weights; runs in a process of its own."""
    import torch
    from torch_models import TorchGPT, copy_weights

    torch.set_num_threads(threads)
    vocab, dim, layers, heads, context = shape
    model = TorchGPT(vocab, dim, layers, heads)
    model.positions = torch.nn.Embedding(context, dim)
    copy_weights(random_gpt(shape), model)
    model.eval()
    ids = torch.tensor([prompt])

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(ids)

    return forward, lambda: forward().numpy()[0]
