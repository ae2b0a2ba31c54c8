"""The tables and targets of generation.py."""

from __future__ import annotations

from dataclasses import dataclass

from generation_sides import Replicate, times_as_fast
from interleaving import REPLICATES, Ratio

INTERVAL = "96% interval"


@dataclass(frozen=True)
class Target:
    """What should be reached. Not to be able to measure it is not the same as to miss it."""

    name: str
    at_least: float
    found: Ratio | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.found is None:
            return f"inconclusive: {self.reason}"
        return "met" if self.found.median >= self.at_least else "missed"


def header(*names: str) -> None:
    row(*names)
    print("|" + "---|" * len(names))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def interval(ratio: Ratio) -> str:
    """Give the interval; it takes all replicates to have one."""
    if len(ratio.values) < REPLICATES:
        return "none"
    low, high = ratio.interval
    return f"{low:.2f} to {high:.2f}"


def against(ours: str, other: str, replicates: list[Replicate]) -> tuple[str, str]:
    if ours == other or other not in replicates[0][0]:
        return "", ""
    ratio = times_as_fast(ours, other, replicates)
    return f"{ratio.median:.2f}", interval(ratio)


def show(targets: list[Target]) -> None:
    header("target", "at least", "found", INTERVAL, "verdict")
    for target in targets:
        found = target.found
        value = ("", "") if found is None else (f"{found.median:.2f}", interval(found))
        row(target.name, target.at_least, *value, target.verdict)
