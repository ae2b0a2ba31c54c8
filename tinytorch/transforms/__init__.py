"""Transforms: one file or folder each. All tables about them are derived from what is found."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pkgutil import iter_modules

from tinytorch.errors import first_line
from tinytorch.transforms.plan import Transform

__all__ = ["FoundTransform", "find_transforms"]

GROUP = "tinytorch.transforms"
"""The entry points by which other packages offer transforms."""


@dataclass(frozen=True)
class FoundTransform:
    """A transform, and the package that it comes from, such as "half-weights 1.2"; "" for ours."""

    transform: type[Transform]
    package: str = ""


@cache
def find_transforms() -> dict[str, FoundTransform]:
    """Return all transforms by the names of their classes, in the order of the catalog.

    First our own, by their `order`, then those of other packages, by the names of their entry
    points. One that cannot be loaded or takes a name that is known already is left out with a
    warning.
    """
    modules = [each.name for each in iter_modules(__path__, f"{__name__}.")]
    modules.remove(Transform.__module__)
    own = [each for module in modules for each in _in(module)]
    own.sort(key=lambda each: (each.order, each.__name__))
    found = {each.__name__: FoundTransform(each) for each in own}
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda each: each.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
        try:
            transform = _checked(point.load(), found.values())
        except Exception as error:  # code of others may raise anything
            told = f"the transform {point.value} of {package} is left out: {first_line(error)}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
            continue
        found[transform.__name__] = FoundTransform(transform, package)
    return found


def _in(module: str) -> Iterator[type[Transform]]:
    """Yield the transforms that a module defines."""
    for value in vars(import_module(module)).values():
        is_own = inspect.isclass(value) and value.__module__ == module
        if is_own and issubclass(value, Transform):
            yield value


def _checked(transform: object, known: Iterable[FoundTransform]) -> type[Transform]:
    """Return the transform of an entry point; raise unless it is one, with unique names."""
    if not (inspect.isclass(transform) and issubclass(transform, Transform)):
        raise TypeError("it is no subclass of tinytorch.transforms.plan.Transform")
    names = {each.transform.__name__ for each in known}
    names |= {variant.name for each in known for variant in each.transform.variants}
    for name in (transform.__name__, *(each.name for each in transform.variants)):
        if name in names:
            raise ValueError(f"there is a {name} already")
    for variant in transform.variants:
        transform(**variant.settings)
    return transform
