"""Which entries are worth adding to a stack, by what was seen of each of them alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tinytorch.tuning.attempt import BETTER, Attempt
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.ranking import OBJECTIVE_OF, value_at
from tinytorch.tuning.trying import by_place
from tinytorch.workloads.profile import Profile

__all__ = ["better_alone", "hidden_alone", "rival_stacks", "roles_of", "sparing_alone"]

CLOSE = 1.25
"""A rival that is at most so many times worse alone may be better in company."""
NOTABLE_WAITING = 0.2
"""From this share of a call on in which the device waits for the program, waiting may hide a gain.

The program, not the device, then sets the pace: kernels that end sooner leave the device to wait
longer. Below it, the device is busy in most of a call and a gain shows; and short calls of any
model wait a little where they begin and end, which hides nothing. It is a choice, not measured: too
low costs trials that find nothing, since what is added has to be shown to be faster.
"""
WITHOUT_WAITING = "kernels"
"""The role of entries that launch fewer kernels, or all of them at once."""
NOT_HIDDEN = frozenset({WITHOUT_WAITING, "calling", "threads"})
"""Roles of entries that change what the program does: waiting for it hides nothing of that."""
OBJECTIVE_OF_LIMIT = {"latency_ms": "time", "memory_mb": "memory", "size_mb": "size"}


def better_alone(
    attempts: Sequence[Attempt], entries: Sequence[Entry], *, goal: str
) -> list[Entry]:
    """Give what was better alone, the best first."""
    alone = _by_entry(attempts)
    found = [
        (value.value, entry)
        for entry in entries
        if entry.name in alone and alone[entry.name].outcome == BETTER
        if (value := value_at(goal, alone[entry.name].measured)) is not None
    ]
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def hidden_alone(
    attempts: Sequence[Attempt],
    entries: Sequence[Entry],
    *,
    best: Sequence[Entry],
    profile: Profile | None,
    goal: str,
) -> list[Entry]:
    """Give what may have gained nothing alone only because the device waits, in the order given.

    That is what was as good as the model and not better, on a device that waits for the program in
    a notable part of a call, once the `best` has something that takes the waiting away. What only
    spares the program work is not among it. Of one role there may be several, and the best may have
    another one of it: which of them was better alone says little.
    """
    idle_share = profile.idle_share if profile else None
    is_hiding = idle_share is not None and idle_share >= NOTABLE_WAITING
    if OBJECTIVE_OF[goal] != "time" or not is_hiding or WITHOUT_WAITING not in roles_of(best):
        return []
    alone = _by_entry(attempts)
    return [
        entry
        for entry in entries
        if entry.role not in NOT_HIDDEN and (found := alone.get(entry.name)) is not None
        if found.is_acceptable and found.outcome != BETTER
    ]


def sparing_alone(
    attempts: Sequence[Attempt], entries: Sequence[Entry], *, limits: Mapping[str, float]
) -> list[Entry]:
    """Give what alone needs less time, memory or space of what is limited, the least first."""
    limited = {OBJECTIVE_OF_LIMIT[name] for name in limits}
    alone = _by_entry(attempts)
    shares: list[tuple[float, Entry]] = []
    for entry in entries:
        if entry.name not in alone or not alone[entry.name].is_acceptable:
            continue
        values = [getattr(alone[entry.name].measured, name) for name in limited]
        if less := [value.value for value in values if value is not None and value.is_less]:
            shares.append((math.prod(less), entry))
    return [entry for _, entry in sorted(shares, key=lambda pair: pair[0])]


def rival_stacks(
    attempts: Sequence[Attempt], ranked: Sequence[Entry], *, best: Sequence[Entry], goal: str
) -> Iterator[tuple[Entry, ...]]:
    """Give the best stack with one part replaced by a rival that was nearly as good alone."""
    if len(best) < 2:
        return
    alone = _by_entry(attempts)
    for part in best:
        own = value_at(goal, alone[part.name].measured)
        for rival in ranked:
            its = value_at(goal, alone[rival.name].measured)
            is_rival = rival.role == part.role and rival.name != part.name
            if is_rival and own and its and its.value <= CLOSE * own.value:
                yield by_place([*(x for x in best if x is not part), rival])


def roles_of(entries: Sequence[Entry]) -> set[str]:
    """Give the roles that a stack of these has taken."""
    return {each.role for each in entries}


def _by_entry(attempts: Sequence[Attempt]) -> dict[str, Attempt]:
    """Give the attempts of single entries, by their names."""
    return {each.stack[0]: each for each in attempts if len(each.stack) == 1}
