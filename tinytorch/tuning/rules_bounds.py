"""How much faster a call can become: the roofline for each operation, Amdahl's law for the whole.

Two assumptions stand behind predicted values: an operation that has less to move, or a higher
ceiling above it, stays as far from its roof as it is now; and operations in one pass take as long
as the slowest of them. The upper end is the roof itself, the lower end 1: a kernel that nobody has
timed may bring nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tinytorch.measure.ceilings import Ceilings
from tinytorch.tuning.rules_facts import Work
from tinytorch.workloads.plan import Gain
from tinytorch.workloads.profile import Profile

__all__ = ["LEAST_GAIN", "NO_CEILINGS", "Change", "Roof", "gain_of", "missing_rate", "roof_of"]

LEAST_GAIN = 1.05
"""Nothing is advised where less is expected."""
NO_CEILINGS = "the machine's ceilings were not measured, so nothing bounds the gain"


@dataclass(frozen=True)
class Roof:
    """The ceilings of a machine for the working set of one profile."""

    ceilings: Ceilings
    bandwidth: float

    def seconds(self, work: Work, *, moved: float | None = None, dtype: str = "") -> float | None:
        """Give the least time for an operation, with so many bytes and in this arithmetic.

        None where the machine's rate for it was not measured.
        """
        record = work.record
        peak = self.ceilings.peak_flops(dtype or record.dtype)
        if record.flops and peak is None:
            return None
        computing = record.flops / peak if record.flops and peak else 0.0
        return max(computing, (record.bytes_moved if moved is None else moved) / self.bandwidth)

    def is_memory_bound(self, work: Work) -> bool | None:
        """Say whether moving bytes is the limit of an operation; None where nobody knows."""
        peak = self.ceilings.peak_flops(work.record.dtype)
        if peak is None or not work.record.bytes_moved:
            return None
        return work.record.all_flops / work.record.bytes_moved < peak / self.bandwidth


def roof_of(profile: Profile) -> Roof | None:
    """Give the roof above a profile, if the machine was measured.

    A model that is called again and again finds in a cache what fits there as a whole.
    """
    ceilings = profile.ceilings
    if ceilings is None:
        return None
    return Roof(ceilings, ceilings.bandwidth(profile.working_set_bytes))


def missing_rate(profile: Profile, dtype: str) -> str:
    """Say why nothing is known about products of a dtype, or nothing where it is known."""
    if profile.ceilings is None:
        return NO_CEILINGS
    if profile.ceilings.peak_flops(dtype) is not None:
        return ""
    why = profile.ceilings.not_measured.get(f"{dtype} rate", "it is not among the measured ones")
    return f"the machine's rate for {dtype} products was not measured: {why}"


@dataclass(frozen=True)
class Change:
    """What becomes of some work: the part of its time that is left, as expected and at best."""

    work: Work
    left: float
    least: float

    @classmethod
    def under(cls, work: Work, now: float | None, then: float | None) -> Change:
        """Give what a roof of `then` seconds in the place of one of `now` leaves.

        Work that beats its roof (a cache helped, or the ceiling is too low) keeps its lead.
        """
        if not now or then is None or work.seconds <= 0:
            return cls(work, 1.0, 1.0)
        left = min(1.0, then / now)
        is_below = work.seconds >= now
        return cls(work, left, min(left, then / work.seconds) if is_below else left)


def gain_of(
    changes: Iterable[Change], basis: str, *, vanishing: float = 0.0, left: float = 1.0
) -> Gain:
    """Give the gain of a whole call by Amdahl's law.

    What is expected is saved in the operation itself, at best also in the Python around it, which
    the layer table has in one number with it. `vanishing` is the share of the call in no operation,
    where that can be gone at best, and of which this part is `left` as expected.
    """
    every = list(changes)
    saved = math.fsum(x.work.share * x.work.inside * (1 - x.left) for x in every)
    most = math.fsum(
        x.work.share * (x.work.inside if vanishing else 1.0) * (1 - x.least) for x in every
    )
    saved, most = saved + vanishing * (1 - left), most + vanishing
    value, high = _speedup(saved), _speedup(most)
    return Gain(value, 1.0, max(value, high), basis)


def _speedup(saved: float) -> float:
    """Give the speedup of a whole that is rid of this share, short of infinity."""
    return 1 / max(1 - saved, 1e-6) if saved > 0 else 1.0
