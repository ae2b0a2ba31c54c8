"""The search: everything alone, what may help together, the best once more, then its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
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
    WORSE,
    Attempt,
    is_less,
)
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.optimization import Contribution
from tinytorch.tuning.ranking import OBJECTIVE_OF, baseline_keeps, choose, next_best, value_at
from tinytorch.tuning.trying import Built, SkippedError, Trials, by_place

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
SHARE_OF_START = 0.25
"""Most of the time budget that is kept back for starting a fresh process for the confirmation."""
ENOUGH_SINGLES = 0.7
"""Once this share is spent, what is left belongs to combinations, where there are any to try."""
LEAST_S, MOST_S = 0.5, 60.0
"""Least and largest time budget of a comparison; it ends early once its verdict is known."""
LEAST_LIMIT_S = 15.0
"""Time limit for planning and applying a stack, however little is left of the time budget."""
OVERHANG = 0.5
"""What is begun late may go on after the end with this share of the time that it is set up in."""
SLACK = 0.1
"""A confirmation may end too late by this share of the budget and the longest set-up."""
SMALLEST_S = 10.0
"""With a smaller budget, the confirmation is made in any case, however late it is."""
MOST_CONFIRMATIONS = 3
"""Most confirmations, from the best attempt on, until one holds."""
OTHER_SEEDS = 1_000_000
"""Offset of the seeds of confirmations from those of attempts."""
TIME_IS_UP = "the time budget of {budget:g} s was spent before"
TAKES_LONGER = "it takes about {needed:.0f} s, and {left:.0f} s of the time budget were left"
NOT_CONFIRMED = (
    "{name} was not compared once more: that takes about {needed:.0f} s, and {left:.0f} s of the "
    "time budget of {budget:g} s were left"
)


class TimeLeft:
    """Progress that says how much of the time budget is left."""

    def __init__(self, progress: Progress, remaining_s: Callable[[], float]) -> None:
        self._progress, self._remaining_s = progress, remaining_s

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(steps)

    def describe(self, text: str) -> None:
        """Describe the current step, and what is left."""
        self._progress.describe(f"{text}, {max(0.0, self._remaining_s()):.0f} s left")


@dataclass
class Search:
    """Tries the entries of a catalog on a workload within a time budget, and keeps the results.

    `finished` are attempts of an earlier run, by their stacks, which are not repeated. `on_attempt`
    is called with each attempt as soon as it is finished, so that an interrupt loses nothing. The
    budget counts from `started`, by the `clock`. `confirmations` are fresh comparisons of what was
    chosen; one of them is of what `chosen` gives, unless that was never confirmed.

    Nothing begins that is not expected to end in time, by what earlier attempts took and by
    `Transform.setup_s`, but for the first; time for the confirmation is kept back.
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
    clock: Callable[[], float] = monotonic
    started: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        if self.progress is not None:
            self.progress = TimeLeft(self.progress, lambda: self.remaining_s)
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
            better = better_alone(self.attempts, self.entries, goal=self.goal)
            until = ENOUGH_SINGLES if len(roles_of(better)) > 1 else 1.0
            self._hold(self._try((entry,), budget_s=share, until=until))

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
        left of the budget may go into it: this is the interval that is quoted. It ends with the
        budget: what is saved and loaded is confirmed where there is time for that, else the model
        in memory, and where not even that can be compared, nothing.
        """
        for place in range(MOST_CONFIRMATIONS):
            chosen = next_best(self.attempts, self.confirmations, **self._asked)
            if chosen is None or any(x.stack == chosen.stack for x in self.confirmations):
                return
            least = self._besides_s(chosen) + LEAST_S
            if self._at_hand(chosen.stack) is None:
                least += self._setup_s(chosen.stack)
            if least > self.remaining_s + self._overtime_s:
                self._leave_unconfirmed(chosen, least)
                return
            is_fresh = self._has_time_to_start(chosen)
            share = self._share_of_confirmation(chosen, is_fresh=is_fresh)
            self._tell(f"{chosen.name} once more{', in a fresh process' if is_fresh else ''}")
            confirmation, built = self.trials.confirm(
                self._entries_of(chosen.stack),
                self._at_hand(chosen.stack),
                budget_s=_bounded(share),
                limit_s=max(LEAST_LIMIT_S, self.remaining_s - self._besides_s(chosen) - share),
                is_fresh=is_fresh,
                seed=self.trials.settings.seed + OTHER_SEEDS + place,
                progress=self.progress,
            )
            self.confirmations.append(confirmation)
            self._confirmed = built
            self._drop(chosen.stack)

    def take_apart(self) -> None:
        """Compare what was chosen with itself without each part, as long as time is left."""
        chosen = self.chosen
        if chosen is None or len(chosen.stack) < 2:
            return
        whole = self._at_hand(chosen.stack)
        if whole is None and self._setup_s(chosen.stack) < self.remaining_s:
            whole = self._built(self._entries_of(chosen.stack))
        if whole is None:
            return
        for place, part in enumerate(whole.stack):
            setup_s = self._setup_s([name for name in whole.stack if name != part])
            share = (self.remaining_s - setup_s) / (len(whole.stack) - place)
            if share < LEAST_S:
                self.ablation.append(Contribution(part, None, self._time_is_up()))
                continue
            self._tell(f"what {part} brings")
            seed = self.trials.settings.seed + 2 * OTHER_SEEDS + place
            self.ablation.append(self._contribution(part, whole, _bounded(share), seed))

    def model_of(self, stack: Sequence[str]) -> Any:
        """Return the model of a stack that was tried; None if it cannot be rebuilt."""
        built = self._at_hand(stack) or self._built(self._entries_of(stack))
        return built and self.trials.model_of(built)

    # ------------------------------------------------------------ single steps

    def _try(
        self, entries: Sequence[Entry], *, budget_s: float, until: float = 1.0
    ) -> Built | None:
        """Try a stack, unless it was tried before or there is no time left.

        It begins before this share of the budget, less what is kept back, is over.
        """
        stack = tuple(each.name for each in entries)
        known = self.finished.get(stack)
        if known is not None and self._still_answers(known):
            self._keep(known)
            return None
        was_any_tried = any(x.outcome not in (NOT_TRIED, SKIPPED) for x in self.attempts)
        besides_s, setup_s = self._besides_s(), self._setup_s(stack)
        left = self.remaining_s - self._reserved_s
        reason = self._why_late(left, besides_s + LEAST_S + OVERHANG * setup_s, until)
        # More time does not help where nothing can be judged.
        if was_any_tried and reason and self.trials.can_judge(entries):
            self._keep(Attempt(stack, NOT_TRIED, reason, code=OUT_OF_TIME))
            return None
        self._tell(" + ".join(stack))
        attempt, built = self.trials.attempt(
            entries,
            budget_s=_bounded(min(budget_s, left - setup_s - besides_s)),
            limit_s=max(LEAST_LIMIT_S, left / 4, min(2 * setup_s, left + OVERHANG * setup_s)),
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
            without = self.trials.build(rest)
            found = self.trials.compare_with(without, whole, budget_s=budget_s, seed=seed)
        except SkippedError as error:
            return Contribution(part, None, f"without it, {error}")
        except Exception as error:  # as in an attempt: a candidate's fault ends nothing
            return Contribution(part, None, first_line(error))
        return Contribution(part, found)

    # ------------------------------------------------------------ what things take

    @property
    def _reserved_s(self) -> float:
        """Seconds that are kept back for a confirmation: its share once there is a best."""
        best, start_s = self.chosen, self.trials.start_s
        if best is None:
            return LEAST_S + self._besides_s()
        kept_s = max(LEAST_S, SHARE_OF_CONFIRMATION * self.trials.settings.budget_s)
        if start_s <= SHARE_OF_START * self.trials.settings.budget_s:
            kept_s += start_s
        return kept_s + self._besides_s(best)

    def _besides_s(self, attempt: Attempt | None = None) -> float:
        """Seconds that an attempt takes beside its set-up and its timing: checks, scores, bytes.

        Of one that was made, what it took; of others, the median so far.
        """
        made = [attempt] if attempt is not None else self.attempts
        found = [each.besides_s for each in made if each.comparison is not None]
        return max(median(found or [0.0]), self.trials.check_s)

    def _setup_s(self, stack: Sequence[str]) -> float:
        """Seconds that planning and applying a stack take, as its attempt or its parts did.

        Where there are none, what their transforms say.
        """
        took = {each.stack: each.setup_s for each in self.attempts if each.setup_s}
        if tuple(stack) in took:
            return took[tuple(stack)]
        parts = self._entries_of(stack)
        return sum(took.get((each.name,), each.setup_s) for each in parts)

    @property
    def _overtime_s(self) -> float:
        """Seconds by which a confirmation may end after the budget."""
        if self.trials.settings.budget_s < SMALLEST_S:
            return math.inf
        longest = max((each.setup_s for each in self.attempts), default=0.0)
        return SLACK * self.trials.settings.budget_s + longest

    def _has_time_to_start(self, chosen: Attempt) -> bool:
        """Whether a fresh process can load both sides, prepare what was chosen, and time them."""
        needed_s = self.trials.start_s + self._setup_s(chosen.stack) + self._besides_s(chosen)
        return needed_s + LEAST_S <= self.remaining_s + self._overtime_s < math.inf

    def _share_of_confirmation(self, chosen: Attempt, *, is_fresh: bool) -> float:
        """Seconds for timing what was chosen; a stack also leaves some for taking it apart."""
        is_stack = len(chosen.stack) > 1
        left = self.remaining_s - self._besides_s(chosen)
        if is_fresh:
            left -= self.trials.start_s + self._setup_s(chosen.stack)
        kept = SHARE_OF_ABLATION * self.trials.settings.budget_s if is_stack else 0.0
        least = SHARE_OF_CONFIRMATION * self.trials.settings.budget_s
        loading_s = self._setup_s(chosen.stack)
        return max(LEAST_S, min(left, max(least, left - kept - loading_s)))

    def _why_late(self, left: float, needed: float, until: float) -> str:
        """Return why there is no time for what needs so many seconds; "" if there is."""
        if left <= 0 or self._left_of(until) <= 0:
            return self._time_is_up()
        return TAKES_LONGER.format(needed=needed, left=left) if needed > left else ""

    def _time_is_up(self) -> str:
        return TIME_IS_UP.format(budget=self.trials.settings.budget_s)

    def _leave_unconfirmed(self, chosen: Attempt, needed: float) -> None:
        self.trials.notes.append(
            NOT_CONFIRMED.format(
                name=chosen.name,
                needed=needed,
                left=max(0.0, self.remaining_s),
                budget=self.trials.settings.budget_s,
            )
        )

    # ------------------------------------------------------------ what is known

    @property
    def _is_about_time(self) -> bool:
        return OBJECTIVE_OF[self.goal] == "time"

    def _still_answers(self, known: Attempt) -> bool:
        """Return whether an earlier attempt was compared with the present best, where needed."""
        if self.best is None or len(known.stack) < 2 or not self._is_about_time:
            return True
        against = known.against_best
        is_judged = known.comparison is not None and known.outcome != WORSE
        return not is_judged or (
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
            return self.trials.build(entries)
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
        return share * self.trials.settings.budget_s - (self.clock() - self.started)

    def _tell(self, text: str) -> None:
        if self.progress:
            self.progress.describe(text)


def _bounded(seconds: float) -> float:
    """Return the time budget of a comparison that may take `seconds` in total."""
    return min(MOST_S, max(LEAST_S, seconds))
