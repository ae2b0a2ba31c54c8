"""Does it fit? The working set of each layer against the caches of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from tinytorch.errors import SettingError
from tinytorch.workloads.profile import Profile

__all__ = ["CacheFit", "cache_fits"]


@dataclass(frozen=True)
class CacheFit:
    """Where the data of a layer's largest operation fits, and how fast that level is.

    `bandwidth` was measured at that level on this machine; `achieved` is what the layer moved per
    second, all its operations together. A layer can be faster than memory only out of a cache.
    """

    path: str
    kind: str
    working_set_bytes: int
    level: str
    level_bytes: int | None
    bandwidth: float
    achieved: float | None


def cache_fits(profile: Profile) -> tuple[CacheFit, ...]:
    """Place every layer that has operations of its own, the largest working set first."""
    ceilings = profile.ceilings
    if ceilings is None:
        raise SettingError("this profile was taken without ceilings; profile with ceilings=True")
    fits = []
    for layer in profile.layers:
        if not layer.self_bytes:
            continue
        level = ceilings.level(layer.largest_operation_bytes)
        fits.append(
            CacheFit(
                path=layer.path,
                kind=layer.kind,
                working_set_bytes=layer.largest_operation_bytes,
                level=level,
                level_bytes=ceilings.cache_bytes.get(level),
                bandwidth=ceilings.bandwidth(layer.largest_operation_bytes),
                achieved=layer.self_bytes / layer.self_s if layer.self_s > 0 else None,
            )
        )
    return tuple(sorted(fits, key=lambda fit: -fit.working_set_bytes))
