"""How many threads matrix products run on: what both sides of a roofline are measured with."""

from __future__ import annotations

import os
import sys

from tinytorch.measure.cores import usable_cores

__all__ = ["blas_threads", "thread_limit", "threads_in_force"]

# A word in the name of NumPy's BLAS -> the variables that it reads, the deciding one first.
BLAS_VARIABLES = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    "blis": ("BLIS_NUM_THREADS", "OMP_NUM_THREADS"),
    "accelerate": ("VECLIB_MAXIMUM_THREADS",),
    "": ("OMP_NUM_THREADS",),
}


LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
"""What people set to say how many threads a PyTorch process may have."""


def thread_limit(present: int) -> int:
    """Return the most threads that a PyTorch process with so many at present may be given.

    A number that somebody chose is a limit, be it by a variable, by torch.set_num_threads() (which
    is in the `present` number) or by the cores and the quota of the process.
    """
    wanted = filter(None, (_number(os.environ.get(name, "")) for name in LIMITS))
    return min(present, usable_cores(), *wanted)


def threads_in_force(blas: str | None) -> int:
    """Give the threads that models run on: PyTorch's number once torch is imported, else BLAS's.

    Never more than the usable cores, because more threads do not make a machine faster.
    """
    ask_torch = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return blas_threads(blas) if ask_torch is None else min(int(ask_torch()), usable_cores())


def blas_threads(blas: str | None) -> int:
    """Give the threads of a BLAS by its name: as its variables say, else all usable cores.

    Libraries read them when they are loaded, so they are to be set before the program starts.
    """
    word = next(word for word in BLAS_VARIABLES if word in (blas or "").lower())
    wanted = (_number(os.environ.get(name, "")) for name in BLAS_VARIABLES[word])
    return min(next(filter(None, wanted), usable_cores()), usable_cores())


def _number(text: str) -> int:
    """Read the number of a variable; OpenMP allows a list, one number for each level of nesting."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0
