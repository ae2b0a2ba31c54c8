"""Letting every attempt compile as if it were the first. Imported after torch."""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["forget_compiled"]


def forget_compiled() -> None:
    """Drop what torch.compile has kept; models that are compiled do it again when called next.

    What follows a graph break is kept with the code of the model's class, which all attempts share,
    for eight variants; any further model would run as it is, and be timed as if it were compiled.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        reset: Any = torch.compiler.reset
        reset()
