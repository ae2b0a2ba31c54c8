"""SetThreads: the transform that gives a PyTorch model the number of threads it is fastest with."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.transforms.plan import TIME, TorchTransform, Variant, check_seconds


@dataclass(frozen=True)
class SetThreads(TorchTransform):
    """Run a PyTorch model on a processor with another number of threads than the process.

    Small models are often fastest with one: waking the others takes longer than the work. Without
    `threads` the plan measures 1, 2, 4, ... up to the present number in turns, in about `budget_s`
    (longer where nine calls of each take longer), and takes the fastest that is faster than the
    present number. It never takes more than the user allows: the present number,
    `OMP_NUM_THREADS`, `MKL_NUM_THREADS`, the usable cores. A number that is given is taken, and
    what it does is measured.

    The number belongs to the Python thread that calls. Another one that computes for the first time
    meanwhile, without such a model, takes the number over.
    """

    variants = (Variant("threads", "tune the number of threads"),)
    role, place, order = "threads", 7, 140
    setup_s = 3.0
    risk, serves = "exact", TIME
    devices = ("cpu",)
    follows_weights = True

    threads: int | None = None
    budget_s: float = 1.0

    def __post_init__(self) -> None:
        number: Any = self.threads
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_whole and number > 0):
            raise SettingError(f"threads={number!r}; it must be a whole number from 1 on, or None")
        check_seconds("budget_s", self.budget_s)

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.set_threads import torch as set_threads_torch

        return set_threads_torch
