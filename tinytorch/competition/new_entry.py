"""Write an entry to start from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tinytorch.competition.entry import (
    MANIFEST,
    Entry,
    EntryError,
    Technique,
    read_entry,
    write_entry,
)
from tinytorch.competition.events import find_event
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError

# ---------------------------------------------------------------- what a new entry starts with:
# techniques for each event, code, and a page that explains them


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
    """Return what answers: a model, or a function from an array (1, 784) to an array (1, 10).

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
    """Return what answers: a model, or a function from an array (50, 1, 28, 28) to (50, 10).

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
        """Return the logits (batch, time, characters) for texts (batch, time)."""
        return self.model(Tensor(ids)).data

    def generate(self, ids, count):
        """Return the `count` characters that follow a text (time,)."""
        text = self.model.generate(ids, count, use_cache=self.use_cache)
        return text.data[len(ids) :]


def make(reference, techniques):
    """Return what answers: a model, a function, or an object with `forward` and `generate`.

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
    """Return the README of an entry."""
    further = CODE_FURTHER if is_code else EXAMPLES[event].further + OWN_TECHNIQUE
    return README.format(
        event=event, further=further, trust=" --trust" if is_code else "", **fields
    )


# ---------------------------------------------------------------- write an entry to start from

README_FILE, CODE, FUNCTION = "README.md", "model.py", "make"
WAYS = ("techniques", "code")


def new_entry(
    folder: str | Path,
    *,
    event: str,
    team: str,
    division: str = "closed",
    tier: float = 0.99,
    example: Literal["techniques", "code"] = "techniques",
) -> Entry:
    """Write an entry that can be judged immediately, with a page that explains it, and return it.

    `example` is whether it declares techniques of TinyTorch or has its own code, `model.py`.
    Nothing is overwritten.
    """
    if example not in WAYS:
        raise SettingError(f"example={example!r}; there are {' and '.join(WAYS)}")
    start, is_code = EXAMPLES[find_event(event).name], example == "code"
    names = start.coded if is_code else start.compiled if find_spec("numba") else start.techniques
    entry = Entry(
        team,
        event,
        division,
        tier,
        tuple(Technique(name) for name in names),
        code=f"{CODE}:{FUNCTION}" if is_code else None,
    )
    texts = {README_FILE: _explain(entry)} | ({CODE: start.code} if is_code else {})
    place = Path(folder)
    _check_free(place, (MANIFEST, *texts))
    for name, text in texts.items():
        with write_atomically(place / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_entry(entry, place)
    return read_entry(place)


def _explain(entry: Entry) -> str:
    event = find_event(entry.event)
    return readme_of(
        event.name,
        is_code=entry.code is not None,
        title=event.title,
        team=_in_table(entry.team),
        about=event.about,
        division=entry.division,
        tier=str(entry.tier),
        techniques=", ".join(each.name for each in entry.techniques) or "none",
        code=entry.code or "null",
    )


def _in_table(text: str) -> str:
    """Escape text for Markdown."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>()#+-.!|&" else letter for letter in text)


def _check_free(folder: Path, names: tuple[str, ...]) -> None:
    if folder.exists() and not folder.is_dir():
        raise EntryError("E1", f"{folder} is a file", "give the name of a new folder")
    taken = next((name for name in names if os.path.lexists(folder / name)), None)
    if taken is not None:
        raise EntryError(
            "E1",
            f"{folder} holds {taken} already, and nothing is overwritten",
            "give another folder",
        )
