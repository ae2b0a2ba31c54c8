"""The trials of a search on an executor: each in a fresh process, which loads the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from time import monotonic
from typing import Any
from uuid import uuid4

from tinytorch.codec import decode
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.executor import Executor, SlotReport, TrialCall, TrialResult
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.tuning.attempt import FAILED, Attempt, Settings
from tinytorch.tuning.catalog import Entry, find_entries
from tinytorch.tuning.trying import Built, Trials, build_stack

SERVICE = f"{__name__}:answer"
ATTEMPT, CONFIRM, COMPARE = "attempt", "confirm", "compare"
ARRIVAL_S, SETUP_S, PATIENCE_S = 1.0, 300.0, 300.0
"""How often is asked for the first slot; seconds for loading and judging, beside the budgets;
how long a search waits for a slot."""


def for_inference(workload: Workload) -> Workload:
    """Return the workload with its model in evaluation mode, or itself where it is already.

    A baseline gets what everybody does for inference; what that brings is no gain of a candidate.
    """
    adapter = adapter_for(workload.model, workload.arguments)
    model = adapter.in_evaluation_mode(workload.model)
    return replace(workload, model=model, notes=())  # its notes are those of the result


def answer(
    step: str,
    target: str,
    settings: Mapping[str, Any],
    stack: Sequence[str],
    against: Sequence[str],
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an attempt, or a comparison of two stacks, for a process that was asked.

    Both sides of a comparison are in this process. Plans are made without a profile.
    """
    workload = for_inference(load_workload(target))
    trials = Trials(workload, decode(Settings, dict(settings)), profile=None)
    entries = find_entries(stack)
    if step == COMPARE:
        first, second = (build_stack(workload, find_entries(x)) for x in (against, stack))
        return trials.compare_with(first, second, **timing).to_dict()
    if step == CONFIRM:
        return trials.confirm(entries, **timing)[0].to_dict()
    best = build_stack(workload, find_entries(against)) if against else None
    return trials.attempt(entries, best=best, **timing)[0].to_dict()


class TrialsElsewhere(Trials):
    """Asks an executor for what :class:`Trials` measures here; models stay in those processes.

    All is measured on one kind of machine, that of most slots.
    """

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        *,
        profile: Profile | None,
        executor: Executor,
        target: str,
    ) -> None:
        if not target:
            raise SettingError(
                "other processes load the workload themselves: give a target, such as "
                "'file.py:factory', or target= beside the workload"
            )
        super().__init__(workload, settings, profile=profile)
        self._executor, self._target = executor, target
        self._run = uuid4().hex
        self._numbers, self._early = count(), dict[tuple[str, ...], str]()
        self._results: dict[str, TrialResult] = {}
        self._slots = self._arrived()
        self.environment = self._slots[0].environment if self._slots else {}

    def begin(self, entries: Iterable[Entry], *, share_s: float, seed: int) -> None:
        """Submit entries alone: they share the seconds that all slots have together."""
        wanted = list(entries)
        budget_s = share_s * max(1, len(self._slots)) / max(1, len(wanted))
        for entry in wanted:
            timing = {"budget_s": budget_s, "limit_s": SETUP_S, "seed": seed}
            self._early[entry.name,] = self._submit(ATTEMPT, (entry.name,), (), timing)

    def build(self, entries: Sequence[Entry]) -> Built:
        """Return the name of a stack: its model is made where it is needed."""
        return Built(tuple(each.name for each in entries), None, ())

    def model_of(self, built: Built) -> Any:
        """Carry out a stack here."""
        return build_stack(self.workload, find_entries(built.stack), self.profile).model

    def attempt(
        self,
        entries: Sequence[Entry],
        *,
        budget_s: float,
        limit_s: float | None = None,
        best: Built | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[Attempt, Built | None]:
        stack = tuple(each.name for each in entries)
        key = self._early.pop(stack, None)
        if key is None:
            timing = {"budget_s": budget_s, "limit_s": limit_s, "seed": seed}
            key = self._submit(ATTEMPT, stack, best.stack if best else (), timing)
        return self._attempt_of(stack, key)

    def confirm(
        self,
        entries: Sequence[Entry],
        built: Built | None = None,
        *,
        budget_s: float,
        limit_s: float | None = None,
        is_fresh: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[Attempt, Built | None]:
        stack = tuple(each.name for each in entries)
        timing = {"budget_s": budget_s, "limit_s": limit_s, "seed": seed}
        return self._attempt_of(stack, self._submit(CONFIRM, stack, (), timing))

    def compare_with(
        self, first: Built, second: Built, *, budget_s: float, seed: int = 0
    ) -> Comparison:
        timing = {"budget_s": budget_s, "seed": seed}
        result = self._result(self._submit(COMPARE, second.stack, first.stack, timing))
        if result.failure is not None:
            raise MeasurementError(str(result.failure))
        return Comparison.from_dict(result.answer)

    def _attempt_of(self, stack: tuple[str, ...], key: str) -> tuple[Attempt, Built | None]:
        result = self._result(key)
        if result.failure is not None:
            return Attempt(stack, FAILED, str(result.failure), seconds=result.child_s), None
        found = Attempt.from_dict(result.answer)
        found = replace(found, notes=(*found.notes, *map(str, result.notes)))
        return found, Built(stack, None, found.plans) if found.is_acceptable else None

    def _submit(
        self, step: str, stack: Sequence[str], against: Sequence[str], timing: Mapping[str, Any]
    ) -> str:
        # An executor may still have calls of an earlier search.
        key = f"{self._run}, {next(self._numbers)}: {step} {' + '.join(stack)}"
        arguments = {
            "step": step,
            "target": self._target,
            "settings": vars(self.settings),
            "stack": list(stack),
            "against": list(against),
            "timing": timing,
        }
        timeout_s = SETUP_S + 4 * timing["budget_s"] + (timing.get("limit_s") or 0.0)
        machine = self._slots[0].machine if self._slots else ""
        self._executor.submit(TrialCall(key, SERVICE, arguments, timeout_s, machine).from_here())
        return key

    def _result(self, key: str) -> TrialResult:
        seen = monotonic()
        while key not in self._results:
            if any(not each.obstacle for each in self._executor.slots):
                seen = monotonic()
            _check_patience(seen)
            self._results |= {each.key: each for each in self._executor.wait(ARRIVAL_S)}
        return self._results.pop(key)

    def _arrived(self) -> list[SlotReport]:
        """Return the slots of the most frequent kind; none where slots say nothing about that."""
        started = monotonic()
        while True:
            slots = [each for each in self._executor.slots if not each.obstacle]
            known = [each for each in slots if each.machine]
            if known:
                kinds = [each.machine for each in known]
                most = max(kinds, key=kinds.count)
                return [each for each in known if each.machine == most]
            if self._executor.slots and not slots:
                reasons = "; ".join(each.obstacle for each in self._executor.slots)
                raise MeasurementError(f"no slot can be used: {reasons}")
            if not self._executor.reports:
                return []
            _check_patience(started)
            self._executor.wait(ARRIVAL_S)


def _check_patience(since: float) -> None:
    """Raise MeasurementError where there has been no slot for too long."""
    if monotonic() - since > PATIENCE_S:
        raise MeasurementError(f"there has been no slot for {PATIENCE_S:.0f} s")
