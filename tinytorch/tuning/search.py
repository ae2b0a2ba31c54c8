"""The search: everything alone, what may help together, the best once more, then its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from tinytorch.errors import first_line
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.estimate import FASTER
from tinytorch.profiling.profile import Profile
from tinytorch.tuning.attempt import (
    BETTER,
    NOT_TRIED,
    OUT_OF_TIME,
    SAME_BYTES,
    SKIPPED,
    Attempt,
    is_less,
)
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.optimization import Contribution
from tinytorch.tuning.ranking import OBJECTIVE_OF, baseline_keeps, choose, next_best, value_at
from tinytorch.tuning.trying import Built, SkippedError, Trials, build_stack, by_place

# ---------------------------------------------------------------- which entries are worth adding
# to a stack, by what was seen of each of them alone

CLOSE = 1.25
"""A rival that is worse alone by at most this factor may be better in a stack."""
NOTABLE_WAITING = 0.2
"""Idle share of the device from which launch overhead may hide a gain.

A host-bound call does not become shorter when its kernels do. Below this share the device is busy
in most of a call and a gain shows; every call is idle for a moment at its beginning and end. The
value is a choice, not a measurement: too low a value costs trials without a gain.
"""
WITHOUT_WAITING = "kernels"
"""The role of entries that reduce launch overhead."""
NOT_HIDDEN = frozenset({WITHOUT_WAITING, "calling", "threads"})
"""Roles of entries that change the work of the host, whose gain launch overhead does not hide."""
OBJECTIVE_OF_LIMIT = {"latency_ms": "time", "memory_mb": "memory", "size_mb": "size"}


def better_alone(
    attempts: Sequence[Attempt], entries: Sequence[Entry], *, goal: str
) -> list[Entry]:
    """Return the entries that were better alone, best first."""
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
    """Return the entries whose gain alone may be hidden because calls are host-bound.

    These are the acceptable entries without a gain, once the `best` reduces launch overhead;
    entries that only save work of the host are excluded. Several may have the same role, or that of
    a part of the best: which of them was better alone says little.
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
    """Return the entries that alone need less of a limited resource, the smallest first."""
    limited = {OBJECTIVE_OF_LIMIT[name] for name in limits}
    alone = _by_entry(attempts)
    shares: list[tuple[float, Entry]] = []
    for entry in entries:
        if entry.name not in alone or not alone[entry.name].is_acceptable:
            continue
        values = [getattr(alone[entry.name].measured, name) for name in limited]
        if less := [value.value for value in values if value is not None and is_less(value)]:
            shares.append((math.prod(less), entry))
    return [entry for _, entry in sorted(shares, key=lambda pair: pair[0])]


def rival_stacks(
    attempts: Sequence[Attempt], ranked: Sequence[Entry], *, best: Sequence[Entry], goal: str
) -> Iterator[tuple[Entry, ...]]:
    """Yield the best stack with one part replaced by a rival that was nearly as fast alone."""
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
    """Return the roles of these entries."""
    return {each.role for each in entries}


def _by_entry(attempts: Sequence[Attempt]) -> dict[str, Attempt]:
    """Return the attempts of single entries, by entry name."""
    return {each.stack[0]: each for each in attempts if len(each.stack) == 1}


# ---------------------------------------------------------------- the search: everything alone,
# what may help together, the best once more, then its parts

SHARE_OF_SINGLES, SHARE_OF_COMBINATIONS = 0.5, 0.2
SHARE_OF_CONFIRMATION, SHARE_OF_ABLATION = 0.15, 0.15
"""Shares of the time budget."""
LEAST_S, MOST_S = 0.5, 60.0
"""Least and largest time budget of a comparison; it ends early once its verdict is known."""
EVIDENCE = 1.2
"""A comparison takes this multiple of its budget: memory and size are measured on top."""
LEAST_LIMIT_S = 60.0
"""Time limit for planning and applying a stack, however small the time budget is."""
MOST_CONFIRMATIONS = 3
"""Most confirmations, from the best attempt on, until one holds."""
OTHER_SEEDS = 1_000_000
"""Offset of the seeds of confirmations from those of attempts."""
TIME_IS_UP = "the time budget of {budget:g} s was spent before"


@dataclass
class Search:
    """Tries the entries of a catalog on a workload within a time budget, and keeps the results.

    `finished` are attempts of an earlier run, by their stacks, which are not repeated. `on_attempt`
    is called with each attempt as soon as it is finished, so that an interrupt loses nothing. The
    budget counts from `started`, by the clock `monotonic`. `confirmations` are fresh comparisons of
    what was chosen; one of them is of what `chosen` gives, unless that was never confirmed.
    """

    trials: Trials
    entries: Sequence[Entry]
    finished: Mapping[tuple[str, ...], Attempt] = field(default_factory=dict)
    on_attempt: Callable[[Attempt], None] = lambda attempt: None
    progress: Progress | None = None
    attempts: list[Attempt] = field(default_factory=list)
    confirmations: list[Attempt] = field(default_factory=list)
    ablation: list[Contribution] = field(default_factory=list)
    best: Built | None = None
    started: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self._single: Built | None = None
        self._confirmed: Built | None = None
        self._known = {each.name: each for each in self.entries}

    @property
    def goal(self) -> str:
        return self.trials.settings.goal

    @property
    def remaining_s(self) -> float:
        return self._left_of(1.0)

    @property
    def chosen(self) -> Attempt | None:
        """The best attempt so far that no fresh comparison speaks against."""
        return choose(self.attempts, self.confirmations, **self._asked)

    @property
    def _asked(self) -> dict[str, Any]:
        return {"goal": self.goal, "limits": self.trials.settings.limits}

    # ------------------------------------------------------------ the stages

    def try_singles(self) -> None:
        """Try every entry alone, in the order given: the most promising first.

        Each gets an equal share of the remaining time, so what is fast leaves more to
        the others, and what takes long does not take everything.
        """
        for place, entry in enumerate(self.entries):
            share = self._left_of(SHARE_OF_SINGLES) / (len(self.entries) - place)
            self._hold(self._try((entry,), budget_s=share))

    def try_combinations(self) -> None:
        """Add to the best what helped alone, as long as that helps; then what may help in company.

        That is what gained nothing alone while the device waited for the program, once the best
        waits less; close rivals of its parts; and, of what waiting hid, rivals for one role.
        """
        ranked = better_alone(self.attempts, self.entries, goal=self.goal)
        if not ranked:
            return
        self.best, self._single = self._at_hand([ranked[0].name]) or self._built(ranked[:1]), None
        self._add_each(ranked[1:])
        hidden = hidden_alone(
            self.attempts,
            self.entries,
            best=self._parts,
            profile=self.trials.profile,
            goal=self.goal,
        )
        self._add_each(hidden)
        rivals = rival_stacks(self.attempts, ranked, best=self._parts, goal=self.goal)
        for stack in list(rivals):
            self._improve(stack)
        for entry in hidden:
            if not self._was_in_company(entry):
                self._improve(self._best_with(entry))

    def try_to_keep_limits(self) -> None:
        """Where nothing keeps to the limits, add what needs less of what is limited, until it does.

        It may make the goal worse: a limit is a condition, a goal a wish.
        """
        limits = self.trials.settings.limits
        if self.best is None and baseline_keeps(self.attempts, limits):
            return
        present = self._parts
        for entry in sparing_alone(self.attempts, self.entries, limits=limits):
            if self.chosen is not None and self.chosen.outcome == BETTER:
                return
            others = [each for each in present if each.role != entry.role]
            stack = by_place([*others, entry])
            names = tuple(each.name for each in stack)
            if not any(each.stack == names for each in self.attempts):
                share = SHARE_OF_COMBINATIONS * self.trials.settings.budget_s / 4
                self._try(stack, budget_s=share)
            found = next(each for each in self.attempts if each.stack == names)
            if found.is_acceptable:
                present = list(stack)

    def confirm(self) -> None:
        """Compare the best with the baseline afresh; where that does not hold, the next best.

        So is one that was clearly better when it was tried than the best is now. What the attempts
        left of the budget may go into it: this is the interval that is quoted.
        """
        least = SHARE_OF_CONFIRMATION * self.trials.settings.budget_s
        for place in range(MOST_CONFIRMATIONS):
            share = max(least, self._left_of(1 - SHARE_OF_ABLATION))
            chosen = next_best(self.attempts, self.confirmations, **self._asked)
            if chosen is None or any(x.stack == chosen.stack for x in self.confirmations):
                return
            self._tell(f"{chosen.name} once more")
            confirmation, built = self.trials.confirm(
                self._entries_of(chosen.stack),
                self._at_hand(chosen.stack),
                budget_s=_bounded(share),
                limit_s=max(LEAST_LIMIT_S, share),
                seed=self.trials.settings.seed + OTHER_SEEDS + place,
                progress=self.progress,
            )
            self.confirmations.append(confirmation)
            self._confirmed = built
            self._drop(chosen.stack)

    def take_apart(self) -> None:
        """Compare what was chosen with itself without each of its parts."""
        chosen = self.chosen
        if chosen is None or len(chosen.stack) < 2:
            return
        whole = self._at_hand(chosen.stack) or self._built(self._entries_of(chosen.stack))
        if whole is None:
            return
        share = SHARE_OF_ABLATION * self.trials.settings.budget_s / len(whole.stack)
        for place, part in enumerate(whole.stack):
            self._tell(f"what {part} brings")
            seed = self.trials.settings.seed + 2 * OTHER_SEEDS + place
            self.ablation.append(self._contribution(part, whole, _bounded(share), seed))

    def model_of(self, stack: Sequence[str]) -> Any:
        """Return the model of a stack that was tried; None if it cannot be rebuilt."""
        built = self._at_hand(stack) or self._built(self._entries_of(stack))
        return built and built.model

    # ------------------------------------------------------------ single steps

    def _try(self, entries: Sequence[Entry], *, budget_s: float) -> Built | None:
        """Try a stack, unless it was tried before or there is no time left."""
        stack = tuple(each.name for each in entries)
        known = self.finished.get(stack)
        if known is not None and self._still_answers(known):
            self._keep(known)
            return None
        was_any_tried = any(x.outcome not in (NOT_TRIED, SKIPPED) for x in self.attempts)
        is_late = was_any_tried and self._left_of(1 - SHARE_OF_CONFIRMATION) <= 0
        if is_late and self.trials.can_judge(entries):  # else more time would not help
            reason = TIME_IS_UP.format(budget=self.trials.settings.budget_s)
            self._keep(Attempt(stack, NOT_TRIED, reason, code=OUT_OF_TIME))
            return None
        self._tell(" + ".join(stack))
        attempt, built = self.trials.attempt(
            entries,
            budget_s=_bounded(min(budget_s, self.remaining_s / 3)),
            limit_s=max(LEAST_LIMIT_S, self.remaining_s / 3),
            best=self.best if len(stack) > 1 and self._is_about_time else None,
            seed=self.trials.settings.seed + len(self.attempts),
            progress=self.progress,
        )
        self._keep(attempt)
        return built

    def _hold(self, built: Built | None) -> None:
        """Keep the model of the best entry so far: to make it again may take long."""
        ranked = better_alone(self.attempts, self.entries, goal=self.goal)
        if built is not None and ranked and built.stack == (ranked[0].name,):
            self._single = built

    def _add_each(self, entries: Sequence[Entry]) -> None:
        """Add one after the other to the best, where it has none of the role, if that is better."""
        for entry in entries:
            if self.best is not None and entry.role not in roles_of(self._parts):
                self._improve(self._best_with(entry))

    def _improve(self, entries: Sequence[Entry]) -> None:
        """Try a stack, and take it as the best where it is shown to be better than that."""
        stack = tuple(each.name for each in entries)
        if any(each.stack == stack for each in self.attempts):
            return
        share = SHARE_OF_COMBINATIONS * self.trials.settings.budget_s / 4
        built = self._try(entries, budget_s=share)
        if self._beats_best(self.attempts[-1]):
            self.best = built or self._built(entries)

    def _beats_best(self, attempt: Attempt) -> bool:
        if attempt.outcome != BETTER or self.best is None:
            return False
        if self._is_about_time:
            return attempt.against_best is not None and attempt.against_best.verdict == FASTER
        before = next((x for x in self.attempts if x.stack == self.best.stack), None)
        ours, theirs = (value_at(self.goal, x.measured) if x else None for x in (attempt, before))
        return ours is not None and theirs is not None and ours.is_less_than(theirs, by=SAME_BYTES)

    def _contribution(self, part: str, whole: Built, budget_s: float, seed: int) -> Contribution:
        rest = self._entries_of([name for name in whole.stack if name != part])
        try:
            without = build_stack(self.trials.workload, rest, self.trials.profile)
            found = self.trials.compare_with(without, whole, budget_s=budget_s, seed=seed)
        except SkippedError as error:
            return Contribution(part, None, f"without it, {error}")
        except Exception as error:  # as in an attempt: a candidate's fault ends nothing
            return Contribution(part, None, first_line(error))
        return Contribution(part, found)

    # ------------------------------------------------------------ what is known

    @property
    def _is_about_time(self) -> bool:
        return OBJECTIVE_OF[self.goal] == "time"

    def _still_answers(self, known: Attempt) -> bool:
        """Return whether an earlier attempt was compared with the present best, where needed."""
        if self.best is None or len(known.stack) < 2 or not self._is_about_time:
            return True
        against = known.against_best
        is_timed = known.comparison is not None
        return not is_timed or (
            against is not None and against.baseline_name == " + ".join(self.best.stack)
        )

    def _at_hand(self, stack: Sequence[str]) -> Built | None:
        """Return a stack whose model is in memory: the confirmed one, else the best so far."""
        held = (self._confirmed, self.best, self._single)
        return next((each for each in held if each and each.stack == tuple(stack)), None)

    def _drop(self, stack: Sequence[str]) -> None:
        """Release the model of a stack that was built before the confirmed one."""
        if self._single and self._single.stack == tuple(stack):
            self._single = None
        if self.best and self.best.stack == tuple(stack):
            self.best = self._confirmed

    def _entries_of(self, stack: Sequence[str]) -> list[Entry]:
        return [self._known[name] for name in stack]

    @property
    def _parts(self) -> list[Entry]:
        return self._entries_of(self.best.stack) if self.best else []

    def _best_with(self, entry: Entry) -> tuple[Entry, ...]:
        """Return the best stack with an entry added, replacing the one of the same role."""
        return by_place([*(each for each in self._parts if each.role != entry.role), entry])

    def _was_in_company(self, entry: Entry) -> bool:
        return any(len(each.stack) > 1 and entry.name in each.stack for each in self.attempts)

    def _built(self, entries: Sequence[Entry]) -> Built | None:
        """Carry out a stack again; it was done before, and its model not kept."""
        try:
            return build_stack(self.trials.workload, entries, self.trials.profile)
        except Exception as error:  # it worked before: say so, and go on without it
            name = " + ".join(each.name for each in entries)
            self.trials.notes.append(f"{name} could not be made again: {first_line(error)}")
            return None

    def _keep(self, attempt: Attempt) -> None:
        if any(each.stack == attempt.stack for each in self.attempts):
            return
        self.attempts.append(attempt)
        self.on_attempt(attempt)
        if self.progress:
            self.progress.advance()

    def _left_of(self, share: float) -> float:
        """Return the seconds left of this share of the time budget."""
        return share * self.trials.settings.budget_s - (monotonic() - self.started)

    def _tell(self, text: str) -> None:
        if self.progress:
            self.progress.describe(text)


def _bounded(seconds: float) -> float:
    """Return the time budget of a comparison that may take `seconds` in total."""
    return min(MOST_S, max(LEAST_S, seconds / EVIDENCE))
