"""What a declared technique does, and in which divisions it is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from tinytorch.competition.entry import PRECISIONS, EntryError, Technique, shown
from tinytorch.competition.events import DIVISIONS, Division
from tinytorch.errors import CheckpointError, TinyTorchError, did_you_mean, first_line
from tinytorch.transforms.plan import Transform
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.recipe import TRANSFORMS, rebuilt_transform

KV_CACHE = "kv-cache"
"""Write text with a cache of keys and values; it is empty before every question."""

WITH_ANOTHER_FUNCTION: tuple[Division, ...] = ("open", "learner")
"""The divisions that allow approximate transforms."""


def divisions_of(transform: type[Transform]) -> tuple[Division, ...]:
    """Return the divisions in which a transform is allowed.

    The references are models of TinyTorch, so that transforms of PyTorch alone are allowed in none,
    and neither is one of another package that does not say that it may compete.
    """
    if not transform.may_compete or "core" not in transform.frameworks:
        return ()
    return WITH_ANOTHER_FUNCTION if transform.risk == "approximate" else DIVISIONS


TECHNIQUES: dict[str, tuple[Transform, ...]] = {
    each.name: each.transforms
    for each in CATALOG
    if "core" in each.frameworks and all(divisions_of(type(part)) for part in each.transforms)
} | {KV_CACHE: ()}
"""What can be declared by its name alone -> its transforms."""

NOT_ALLOWED = {each.name: each for each in CATALOG if each.name not in TECHNIQUES}


def resolve(technique: Technique) -> tuple[Transform, ...]:
    """Return the transforms of a technique in their order; raise EntryError (E3) if one is unknown.

    `kv-cache` has none: it changes how text is written, not the model.
    """
    if not technique.transforms:
        return _find(technique.name)
    found = tuple(_rebuilt(technique.name, *each) for each in technique.transforms)
    is_taken = technique.name in TECHNIQUES or technique.name in NOT_ALLOWED
    if is_taken and found != TECHNIQUES.get(technique.name):
        raise EntryError(
            "E3",
            f"{technique.name} is a name of the catalog, which has its own transforms",
            "leave out the transforms, or choose another name",
        )
    return found


def resolved(technique: Technique) -> Technique:
    """Return a technique with its transforms and all their settings written out."""
    return Technique(
        technique.name,
        tuple((type(each).__name__, settings_of(each)) for each in resolve(technique)),
    )


def settings_of(transform: Transform) -> dict[str, Any]:
    """Return the settings of a transform as JSON represents them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in transform.to_dict().items()
    }


def why_not_in(division: str, technique: Technique) -> str:
    """Return why a technique is not allowed in a division, or ""."""
    for transform in resolve(technique):
        if division not in divisions_of(type(transform)):
            return f"{technique.name} {transform.effect} ({transform.name})"
    return ""


def implied_precision(technique: Technique) -> str:
    """Return the least precise kind of number that a technique puts into products.

    Weights of 8 bits that are multiplied as floats count as 8 bits.
    """
    kinds = [each.precision for each in resolve(technique)]
    return max(kinds, key=PRECISIONS.index, default=PRECISIONS[0])


def missing_parts(technique: Technique) -> tuple[str, ...]:
    """Return the extras that a technique needs and that are not installed."""
    return tuple(extra for each in resolve(technique) for extra in each.missing_extras)


def _find(name: str) -> tuple[Transform, ...]:
    if name in TECHNIQUES:
        return TECHNIQUES[name]
    if name in NOT_ALLOWED:
        raise _not_allowed(f"the technique {name}", NOT_ALLOWED[name].frameworks)
    hint = did_you_mean(name, TECHNIQUES)
    raise EntryError("E3", f"no technique {name}", f"{hint}; or give it transforms")


def _rebuilt(technique: str, name: str, settings: Mapping[str, Any]) -> Transform:
    if name not in TRANSFORMS:
        known = [each for each in TRANSFORMS if divisions_of(TRANSFORMS[each])]
        hint = did_you_mean(name, known)
        raise EntryError("E3", f"{technique}: no transform {shown(name)}", hint)
    if not divisions_of(TRANSFORMS[name]):
        raise _not_allowed(f"{technique}: {name}", TRANSFORMS[name].frameworks)
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
    raise EntryError("E3", seen, f"fix them; {_settings_text(name)}")


def _not_allowed(subject: str, frameworks: Sequence[str]) -> EntryError:
    if "core" in frameworks:
        return EntryError("E3", f"{subject} is not allowed in the competition", "leave it out")
    return EntryError(
        "E3",
        f"{subject} is for models of PyTorch, and the reference is one of TinyTorch",
        "leave it out, or enter code that builds a model of PyTorch",
    )


def _fields(name: str) -> list[Field[Any]]:
    return [each for each in fields(TRANSFORMS[name]) if each.init]


def _settings_text(name: str) -> str:
    """Return the settings of a transform with their defaults, as text."""
    told = [
        each.name if each.default is MISSING else f"{each.name} ({json.dumps(each.default)})"
        for each in _fields(name)
    ]
    return f"{name} has {', '.join(told) or 'no settings'}"


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, TinyTorchError) else first_line(error)
