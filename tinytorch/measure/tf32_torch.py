"""Whether CUDA devices multiply float32 numbers as TF32: with 11 bits each instead of 24.

That is a setting of the whole process. Imported after torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

__all__ = ["convolves_in_tf32", "multiplies_in_tf32", "multiplying_in_tf32"]


def multiplies_in_tf32() -> bool:
    """Tell whether products of float32 matrices are TF32 now."""
    settings: Any = torch.backends.cuda.matmul
    # Since torch 2.9; the older name raises where somebody has used the newer one.
    if hasattr(settings, "fp32_precision"):
        return bool(settings.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


def convolves_in_tf32() -> bool:
    """Tell whether convolutions of float32 numbers are TF32 now."""
    settings: Any = torch.backends.cudnn
    if hasattr(settings, "conv"):
        return bool(settings.conv.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


@contextmanager
def multiplying_in_tf32(wanted: bool = True) -> Iterator[None]:
    """Let products of float32 matrices be TF32, or not, and put the setting back.

    The older name of the setting is the one that torch.compile of every version looks at.
    """
    if multiplies_in_tf32() == wanted:
        yield
        return
    settings: Any = torch.backends.cuda.matmul
    names = ("allow_tf32", "fp32_precision")
    before = {name: getattr(settings, name) for name in names if _is_readable(name)}
    _hear_warning_once()
    settings.allow_tf32 = wanted
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def _is_readable(name: str) -> bool:
    try:
        getattr(torch.backends.cuda.matmul, name)
    except (AttributeError, RuntimeError):  # not in this version; set by the newer name
        return False
    return True


@cache
def _hear_warning_once() -> None:
    """Let torch say that this name of the setting is old, where nobody is bothered by it."""
    settings: Any = torch.backends.cuda.matmul
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings.allow_tf32 = settings.allow_tf32 if _is_readable("allow_tf32") else True
