"""Does it fit? The working set of each layer against the caches of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from tinytorch.errors import SettingError
from tinytorch.workloads.profile import Hotspot, Profile

__all__ = ["CacheFit", "cache_fits"]


@dataclass(frozen=True)
class CacheFit:
    """Where the data of the largest operation of some layers fits, and how fast that level is.

    `bandwidth` was measured at that level on this machine; `achieved` is what the layers moved per
    second, all their own operations together. They can be faster than memory only out of a cache.
    """

    hotspot: Hotspot
    working_set_bytes: int
    level: str
    level_bytes: int | None
    bandwidth: float
    achieved: float | None


def cache_fits(profile: Profile) -> tuple[CacheFit, ...]:
    """Place the layers that have operations of their own, in the order of the hotspots."""
    ceilings = profile.ceilings
    if ceilings is None:
        raise SettingError("this profile was taken without ceilings; profile with ceilings=True")
    layers = {layer.path: layer for layer in profile.layers}
    fits = []
    for hotspot in profile.hotspots:
        members = [layers[path] for path in hotspot.layers]
        moved = sum(layer.self_bytes for layer in members)
        if not moved:
            continue
        largest = max(layer.self_largest_bytes for layer in members)
        level = ceilings.level(largest)
        fits.append(
            CacheFit(
                hotspot=hotspot,
                working_set_bytes=largest,
                level=level,
                level_bytes=ceilings.cache_bytes.get(level),
                bandwidth=ceilings.bandwidth(largest),
                achieved=moved / hotspot.self_s if hotspot.self_s > 0 else None,
            )
        )
    return tuple(fits)
