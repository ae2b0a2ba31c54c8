"""Naming many layers at once: ``blocks.{0..3}.mlp`` for four of them that differ in a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LayerGroup", "StepGroup", "group_layers"]

MOST_PIECES = 5
"""So many numbers and runs of them are written out; of more, the middle is left out."""

_Parts = tuple[tuple[str, ...], ...]
"""A path, part by part, each with everything that can stand there."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that one name stands for. It is exact, unless numbers were left out of it (...)."""

    name: str
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class StepGroup:
    """Layers to which a plan does the same for the same reason."""

    layers: LayerGroup
    what: str
    why: str


def group_layers(paths: Iterable[str]) -> tuple[LayerGroup, ...]:
    """Put layers together whose paths differ only in numbers, in the order of the first of each.

    A group has every combination of its numbers, so its name says exactly which layers it has.

    >>> [group.name for group in group_layers(["h.0.q", "h.1.q", "h.2.q", "h.2.k", "head"])]
    ['h.{0..2}.q', 'h.2.k', 'head']
    """
    groups: dict[_Parts, list[str]] = {
        tuple((part,) for part in path.split(".")): [path] for path in paths
    }
    for place in range(max((len(parts) for parts in groups), default=0)):
        groups = _merged_at(groups, place)
    return tuple(LayerGroup(_name(parts), tuple(found)) for parts, found in groups.items())


def _merged_at(groups: dict[_Parts, list[str]], place: int) -> dict[_Parts, list[str]]:
    """Merge groups that are the same but for the numbers in one place."""
    alike: dict[_Parts, list[_Parts]] = {}
    for parts in groups:
        others = parts
        if place < len(parts) and all(_is_number(text) for text in parts[place]):
            others = (*parts[:place], (), *parts[place + 1 :])
        alike.setdefault(others, []).append(parts)
    merged: dict[_Parts, list[str]] = {}
    for others, members in alike.items():
        parts = members[0]
        if len(members) > 1:
            numbers = tuple(text for each in members for text in each[place])
            parts = (*others[:place], numbers, *others[place + 1 :])
        merged[parts] = [path for each in members for path in groups[each]]
    return merged


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text


def _name(parts: _Parts) -> str:
    return ".".join(part[0] if len(part) == 1 else _numbers_text(part) for part in parts)


def _numbers_text(numbers: Sequence[str]) -> str:
    """Write numbers in braces, as shells do: ``{0,1}``, ``{0..3}``, ``{0..3,7}``."""
    pieces: list[str] = []
    for run in _runs(sorted(int(text) for text in numbers)):
        pieces += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    if len(pieces) > MOST_PIECES:
        pieces = [*pieces[: MOST_PIECES - 2], "...", pieces[-1]]
    return f"{{{','.join(pieces)}}}"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
