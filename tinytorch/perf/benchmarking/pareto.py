"""Which models are not beaten: the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinytorch.errors import SettingError

__all__ = ["dominates", "pareto_front"]

Point = Sequence[float]


def dominates(first: Point, second: Point, *, lower_is_better: Sequence[bool]) -> bool:
    """Tell whether the first is at least as good in everything, and better in something."""
    signs = [1 if lower else -1 for lower in lower_is_better]
    pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, first, second, strict=True)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(points: Mapping[str, Point], *, lower_is_better: Sequence[bool]) -> list[str]:
    """Give the names of the points that no other dominates, best in the first objective first.

    Points that are equal do not beat each other: both are on the front.

    >>> models = {"slow": (9.0, 0.99), "fast": (1.0, 0.97), "bad": (5.0, 0.90)}
    >>> pareto_front(models, lower_is_better=(True, False))
    ['fast', 'slow']
    """
    for name, point in points.items():
        if len(point) != len(lower_is_better):
            raise SettingError(
                f"{name!r} has {len(point)} objectives, and {len(lower_is_better)} have a direction"
            )
    front = [
        name
        for name, point in points.items()
        if not any(
            dominates(other, point, lower_is_better=lower_is_better) for other in points.values()
        )
    ]
    sign = 1 if lower_is_better and lower_is_better[0] else -1
    return sorted(front, key=lambda name: sign * points[name][0])
