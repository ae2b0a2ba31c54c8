"""What a new entry starts with: techniques for each event, code, and a page that explains them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXAMPLES", "Example", "readme_of"]


@dataclass(frozen=True)
class Example:
    """The start for one event.

    `techniques` need nothing that is not always there, `compiled` the extra `fast`; they take the
    place of the others where it is installed. `coded` are the techniques of `code`. `further` says
    what to try next.
    """

    techniques: tuple[str, ...]
    compiled: tuple[str, ...]
    coded: tuple[str, ...]
    code: str
    further: str


MLP_CODE = '''"""Reads digits with NumPy alone: three products, without layers around them."""

import numpy as np


def make(reference, techniques):
    """Give what answers: a model, or a function from an array (1, 784) to an array (1, 10).

    `reference` holds the trained model, `reference.model`, and batches for calibration,
    `reference.calibration`. `techniques` are the names from entry.json that are switched on.
    """
    if "plain-numpy" not in techniques:
        return reference.model
    layers = [each for each in reference.model.layers if hasattr(each, "weight")]
    weights = [(each.weight.data.copy(), each.bias.data.copy()) for each in layers]

    def answer(images):
        for weight, bias in weights[:-1]:
            images = images @ weight
            images += bias
            np.maximum(images, 0, out=images)
        weight, bias = weights[-1]
        return images @ weight + bias

    return answer
'''

CNN_CODE = '''"""Reads digits with the layers of the reference, in another order."""

from tinytorch.core.layers import ReLU, Sequential
from tinytorch.core.spatial import MaxPool2d


def make(reference, techniques):
    """Give what answers: a model, or a function from an array (50, 1, 28, 28) to (50, 10).

    `reference` holds the trained model, `reference.model`, and batches for calibration,
    `reference.calibration`. `techniques` are the names from entry.json that are switched on.
    """
    if "pool-first" not in techniques:
        return reference.model
    layers = list(reference.model.layers)
    for place in range(len(layers) - 1):
        # The largest of four numbers is the same before and after ReLU, which then has a quarter
        # of the work.
        if isinstance(layers[place], ReLU) and isinstance(layers[place + 1], MaxPool2d):
            layers[place], layers[place + 1] = layers[place + 1], layers[place]
    return Sequential(*layers)
'''

GPT_CODE = '''"""Reads and writes text with the reference; keeps keys and values while it writes."""

from tinytorch.core.tensor import Tensor


class Writer:
    """What answers: `forward` reads texts, `generate` writes the most likely characters."""

    def __init__(self, model, use_cache):
        self.model = model
        self.use_cache = use_cache

    def forward(self, ids):
        """Give the outputs (batch, time, characters) for texts (batch, time)."""
        return self.model(Tensor(ids)).data

    def generate(self, ids, count):
        """Give the `count` characters that follow a text (time,)."""
        text = self.model.generate(ids, count, use_cache=self.use_cache)
        return text.data[len(ids) :]


def make(reference, techniques):
    """Give what answers: a model, a function, or an object with `forward` and `generate`.

    `reference` holds the trained model, `reference.model`, and batches for calibration,
    `reference.calibration`. `techniques` are the names from entry.json that are switched on.
    """
    return Writer(reference.model, use_cache="kv-cache" in techniques)
'''

EXAMPLES: dict[str, Example] = {
    "mlp_sprint": Example(
        ("fused-layers",),
        ("fused-layers",),
        ("plain-numpy",),
        MLP_CODE,
        'With the extra `fast`: `["int8-dynamic", "fused-layers", "compiled-kernels"]`, and\n'
        '`"precision": "int8"`.',
    ),
    "cnn_marathon": Example(
        (),
        ("compiled-kernels",),
        ("pool-first",),
        CNN_CODE,
        "With the extra `fast` (`pip install '.[fast]'`):\n"
        '`["int8-dynamic", "compiled-kernels"]`, and `"precision": "int8"`. Without it, the entry\n'
        "declares nothing: what is fast here needs compiled kernels, or code.",
    ),
    "transformer_decathlon": Example(
        ("kv-cache",),
        ("kv-cache",),
        ("kv-cache",),
        GPT_CODE,
        "Ten disciplines count the same. `int8-dynamic` makes the model smaller, but slow without\n"
        "`compiled-kernels`, and these take time to load.",
    ),
}

README = """# {title}: {team}

`entry.json` is the entry. It is data: reading it runs nothing.

| field | here | it may be |
|---|---|---|
| `team` | {team} | plain text, at most 60 characters |
| `event` | {event} | {about} |
| `division` | {division} | `closed`: the reference's weights, no pruning; `open`: anything; \
`learner`: TinyTorch alone |
| `tier` | {tier} | 0.99 or 0.999: the share of the reference's accuracy to keep |
| `techniques` | {techniques} | names; each is switched off in turn, to see what it gives |
| `precision` | float32 | the least precise numbers in products: float32, bfloat16, float16, int8, \
int4 |
| `weights` | null | a file in this folder, or null for the reference's |
| `code` | {code} | a function in a file of this folder, or null |

```console
$ tinytorch compete check FOLDER{trust}
$ tinytorch compete run FOLDER{trust}
$ tinytorch compete submit FOLDER --to SUBMISSIONS
```

## What to try next

{further}
"""

OWN_TECHNIQUE = """

A technique of your own is a name with transforms and their settings:

```json
{"name": "careful-int8",
 "transforms": [{"transform": "Quantize", "settings": {"max_error": 0.01}}]}
```"""

CODE_FURTHER = """Change `make` in `model.py`. Declare what it does as techniques with names of
your own, and do each only if its name is in `techniques`: then the judge can tell what each one
gives. Learners import nothing but the standard library, NumPy and TinyTorch."""


def readme_of(event: str, *, is_code: bool, **fields: str) -> str:
    """Give the page that explains an entry."""
    further = CODE_FURTHER if is_code else EXAMPLES[event].further + OWN_TECHNIQUE
    return README.format(
        event=event, further=further, trust=" --trust" if is_code else "", **fields
    )
