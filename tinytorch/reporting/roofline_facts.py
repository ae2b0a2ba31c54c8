"""What a roofline shows of a profile, and the words beside it, in letters or on a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tinytorch.measure.ceilings import Bandwidth
from tinytorch.reporting.quantities import bytes_text, count_text, rate_text
from tinytorch.workloads.profile_facts import BottleneckFacts, describe_hotspot

if TYPE_CHECKING:
    from tinytorch.workloads.profile import Profile

__all__ = ["Roofline", "find_roofline"]


@dataclass(frozen=True)
class Roofline:
    """The slowest layers of a profile, and the ceilings above them.

    `peak` is that of `dtype` in FLOP/s, `home` the level of memory that holds what a call touches.
    """

    dtype: str
    peak: float
    bandwidths: tuple[Bandwidth, ...]
    home: Bandwidth
    working_set_bytes: int
    found: tuple[BottleneckFacts, ...]

    @property
    def ridge(self) -> float:
        """Give the FLOP per byte from which on computing is the limit."""
        return self.peak / self.home.ceiling

    def reached(self, found: BottleneckFacts) -> float:
        """Give the FLOP/s of some layers."""
        return (found.of_peak or 0) * self.peak

    def explanation(self, *, ridge_mark: str, point: str) -> Iterator[str]:
        """Yield sentences on how to read the picture, in which a layer is a `point`."""
        ridge = f"{ridge_mark} ({count_text(self.ridge)} FLOP per byte)"
        yield (
            f"The line is what is possible here. It rises with the bandwidth of {self.home.level}, "
            f"{rate_text(self.home.ceiling, 'B/s')}, which holds the "
            f"{bytes_text(self.working_set_bytes)} that a call touches, up to the {self.dtype} "
            f"peak. Left of {ridge} moving bytes is the limit, right of it computing. The further "
            f"a {point} is below the line, the faster its layers could be."
        )
        others = sorted(self.bandwidths, key=lambda each: -each.ceiling)
        named = [f"{x.level} {rate_text(x.ceiling, 'B/s')}" for x in others if x is not self.home]
        if named:
            yield f"Dotted, from left: {', '.join(named)}."
        if any((each.of_attainable or 0) > 1 for each in self.found):
            yield (
                "What is above the line had its bytes in a faster level, or a ceiling or a count "
                "is wrong."
            )


def find_roofline(profile: Profile, most: int) -> Roofline | None:
    """Give the slowest layers, at most so many, below the roof of the profile's dtype.

    None without ceilings, and where no layer has a bound. Layers without FLOPs have no place on
    logarithmic axes.
    """
    ceilings = profile.ceilings
    peak = ceilings.peak_flops(profile.dtype) if ceilings else None
    found = (describe_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    placed = (each for each in found if each.bound and each.intensity)
    drawn = tuple(islice(placed, most))
    if ceilings is None or peak is None or not drawn:
        return None
    size = profile.working_set_bytes
    level = ceilings.level(size)
    home = next(each for each in ceilings.bandwidths if each.level == level)
    return Roofline(profile.dtype, peak, ceilings.bandwidths, home, size, drawn)
