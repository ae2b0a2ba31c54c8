"""Whether CUDA devices multiply float32 numbers as TF32: with 11 bits each instead of 24.

That is a setting of the whole process. Imported after torch.
"""

from __future__ import annotations

import warnings
from functools import cache
from threading import Lock
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


class _Multiplying:
    """A block in which products of float32 matrices are TF32, in all threads.

    The first that enters changes the setting, and the last that leaves puts it back. The older name
    of the setting is the one that torch.compile of every version looks at.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before: str | None = None
        self._is_changed = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside and not multiplies_in_tf32():
                settings: Any = torch.backends.cuda.matmul
                self._before = getattr(settings, "fp32_precision", None)
                _hear_warning_once()
                settings.allow_tf32 = self._is_changed = True
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside or not self._is_changed:
                return
            self._is_changed = False
            settings: Any = torch.backends.cuda.matmul
            settings.allow_tf32 = False
            if self._before is not None:
                settings.fp32_precision = "none"  # what holds for all of torch, unless it differs
                if settings.fp32_precision != self._before:
                    settings.fp32_precision = self._before


multiplying_in_tf32 = _Multiplying()
"""The block."""


@cache
def _hear_warning_once() -> None:
    """Let torch say that this name of the setting is old, where nobody is bothered by it."""
    settings: Any = torch.backends.cuda.matmul
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings.allow_tf32 = True
