"""What a declared technique does, and in which divisions it is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Literal

from tinytorch.competition.entry import PRECISIONS, EntryError, Technique, shown
from tinytorch.competition.events import DIVISIONS, Division
from tinytorch.errors import CheckpointError, TinyTorchError, first_line
from tinytorch.transforms.plan import Transform
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.recipe import TRANSFORMS, rebuilt_transform

__all__ = [
    "KV_CACHE",
    "RULINGS",
    "TECHNIQUES",
    "Ruling",
    "implied_precision",
    "missing_parts",
    "resolve",
    "resolved",
    "why_not_in",
]

KV_CACHE = "kv-cache"
"""Write text with a cache of keys and values; it is empty before every question."""

Kind = Literal["exact", "quantization", "approximation", "PyTorch"]
ALLOWED_IN: dict[Kind, tuple[Division, ...]] = {
    "exact": DIVISIONS,
    "quantization": DIVISIONS,
    "approximation": ("open", "learner"),
    "PyTorch": (),  # the references are models of TinyTorch
}


@dataclass(frozen=True)
class Ruling:
    """What a transform is in the eyes of the competition: its kind, and what it does."""

    kind: Kind
    about: str

    @property
    def divisions(self) -> tuple[Division, ...]:
        """The divisions in which it is allowed."""
        return ALLOWED_IN[self.kind]


# fmt: off
RULINGS: dict[str, Ruling] = {
    "Quantize": Ruling("quantization", "holds weights in 8 or 4 bits"),
    "FuseLayers": Ruling("exact", "computes neighbouring layers in one pass"),
    "CompiledKernels": Ruling("exact", "computes with compiled kernels"),
    "Prune": Ruling("approximation", "sets weights to zero"),
    "SparseLayers": Ruling("approximation", "leaves out weights that are zero"),
    "RemoveChannels": Ruling("approximation", "removes channels with their weights"),
    "RemoveLayers": Ruling("approximation", "removes layers with their weights"),
    "LowRank": Ruling("approximation", "replaces weights by products of smaller matrices"),
    "LowerPrecision": Ruling("PyTorch", "computes in 16 bits"),
    "TensorFloat32": Ruling("PyTorch", "multiplies with fewer bits on a GPU"),
    "FoldBatchNorm": Ruling("PyTorch", "folds batch norms into convolutions"),
    "FuseAttention": Ruling("PyTorch", "computes attention in one kernel"),
    "ChannelsLast": Ruling("PyTorch", "keeps the channels of a pixel together"),
    "SetThreads": Ruling("PyTorch", "sets the number of threads"),
    "InferenceMode": Ruling("PyTorch", "does without the book-keeping for gradients"),
    "CompileModel": Ruling("PyTorch", "lets torch.compile fuse operations"),
    "CaptureGraph": Ruling("PyTorch", "starts all kernels of a call at once"),
    "StaticGeneration": Ruling("PyTorch", "writes with a cache that is allocated once"),
}
# fmt: on
"""The name of a transform -> the ruling about it."""

TECHNIQUES: dict[str, tuple[Transform, ...]] = {
    each.name: each.transforms for each in CATALOG if "core" in each.frameworks
} | {KV_CACHE: ()}
"""What can be declared by its name alone -> its transforms."""

FOR_PYTORCH = frozenset(each.name for each in CATALOG if "core" not in each.frameworks)
COMPILED_BACKENDS = {"numba": "fast"}
"""A backend that has to be installed -> the extra that brings it."""


def resolve(technique: Technique) -> tuple[Transform, ...]:
    """Give the transforms of a technique in their order; raise EntryError (E3) if one is unknown.

    `kv-cache` has none: it changes how text is written, not the model.
    """
    if not technique.transforms:
        return _find(technique.name)
    found = tuple(_rebuilt(technique.name, *each) for each in technique.transforms)
    is_taken = technique.name in TECHNIQUES or technique.name in FOR_PYTORCH
    if is_taken and found != TECHNIQUES.get(technique.name):
        raise EntryError(
            "E3",
            f"{technique.name} is a name of the catalog, and has transforms of its own there",
            "leave out the transforms, or choose another name",
        )
    return found


def resolved(technique: Technique) -> Technique:
    """Give a technique with its transforms and all their settings written out."""
    return Technique(
        technique.name,
        tuple((type(each).__name__, settings_of(each)) for each in resolve(technique)),
    )


def settings_of(transform: Transform) -> dict[str, Any]:
    """Give the settings of a transform as JSON has them."""
    settings: dict[str, Any] = asdict(transform)  # type: ignore[call-overload]
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }


def why_not_in(division: str, technique: Technique) -> str:
    """Say why a technique is not allowed in a division, or nothing."""
    for transform in resolve(technique):
        name = type(transform).__name__
        if division not in RULINGS[name].divisions:
            return f"{technique.name} {RULINGS[name].about} ({name})"
    return ""


def implied_precision(technique: Technique) -> str:
    """Give the least precise kind of number that a technique puts into products.

    Weights of 8 bits that are multiplied as floats count as 8 bits.
    """
    kinds = [_precision_of(each) for each in resolve(technique)]
    return max(kinds, key=PRECISIONS.index, default=PRECISIONS[0])


def missing_parts(technique: Technique) -> tuple[str, ...]:
    """Give the extras that a technique needs and that are not installed here."""
    backends = [settings_of(each).get("backend") for each in resolve(technique)]
    return tuple(
        extra
        for package, extra in COMPILED_BACKENDS.items()
        if package in backends and find_spec(package) is None
    )


def _precision_of(transform: Transform) -> str:
    settings = settings_of(transform)
    if type(transform).__name__ == "Quantize":
        return f"int{settings['bits']}"
    return str(settings["dtype"]) if "dtype" in settings else PRECISIONS[0]


def _find(name: str) -> tuple[Transform, ...]:
    if name in TECHNIQUES:
        return TECHNIQUES[name]
    if name in FOR_PYTORCH:
        raise EntryError(
            "E3",
            f"the technique {name} is for models of PyTorch, and the reference is one of TinyTorch",
            "leave it out, or enter code that builds a model of PyTorch",
        )
    near = get_close_matches(name, TECHNIQUES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TECHNIQUES)}"
    raise EntryError(
        "E3", f"no technique {name}", f"{hint} Or give it transforms" if near else hint
    )


def _rebuilt(technique: str, name: str, settings: Mapping[str, Any]) -> Transform:
    if name not in TRANSFORMS:
        near = get_close_matches(name, TRANSFORMS, n=1)
        known = [each for each, ruling in RULINGS.items() if ruling.divisions]
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise EntryError("E3", f"{technique}: no transform {shown(name)}", hint)
    if not RULINGS[name].divisions:
        raise EntryError(
            "E3",
            f"{technique}: {name} is for models of PyTorch, and the reference is one of TinyTorch",
            "leave it out, or enter code that builds a model of PyTorch",
        )
    unknown = [each for each in settings if each not in {field.name for field in _fields(name)}]
    if unknown:
        seen = f"{technique}: {name} has no setting {shown(unknown[0])}"
        raise EntryError("E3", seen, _settings_text(name))
    try:
        return rebuilt_transform(name, settings)
    except CheckpointError as error:
        reason = _reason(error.__cause__ or error)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        reason = _reason(error)
    seen = f"{technique}: {name} does not take its settings: {reason}"
    raise EntryError("E3", seen, f"mend them; {_settings_text(name)}")


def _fields(name: str) -> list[Field[Any]]:
    return [each for each in fields(TRANSFORMS[name]) if each.init]


def _settings_text(name: str) -> str:
    """Say which settings a transform has, and what each is unless it is given."""
    told = [
        each.name if each.default is MISSING else f"{each.name} ({json.dumps(each.default)})"
        for each in _fields(name)
    ]
    return f"{name} has {', '.join(told) or 'no settings'}"


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, TinyTorchError) else first_line(error)
