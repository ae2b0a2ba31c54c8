"""A sweep: the trials of a suite on the slots of an executor, each once on each kind of machine."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from tinytorch.benchmarking.suite_file import Entry, Suite, digest
from tinytorch.benchmarking.suite_run import (
    SERVICE,
    EntryOutcome,
    StorePath,
    entry_answer,
    entry_call,
    entry_record,
    select_entries,
)
from tinytorch.codec import Coded
from tinytorch.errors import MeasurementError, RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.executor import Executor, SlotReport, TrialCall, TrialResult
from tinytorch.records.location import Location, store_path
from tinytorch.records.record import Record
from tinytorch.records.store import RecordStore, open_store
from tinytorch.showing import Shown

SWEEP_KIND, TRIAL_KIND = "sweep", "sweep trial"
EACH, ANY = "each", "any"
MACHINES = {
    EACH: "every trial once on each kind of machine",
    ANY: "every trial once, on whichever slot is free",
}
RECENT = 20
ARRIVAL_CHECKS, ARRIVAL_BUDGET_S = 20, 0.5
POLL_S = 0.5
PATIENCE_S, OBSTACLE_S = 300.0, 15.0
"""How long a sweep waits for a slot; where there are some that cannot be used, such as cores that
another has just left."""
SEPARATOR = "/"


def arrival_call(checks: int = ARRIVAL_CHECKS, *, budget_s: float = ARRIVAL_BUDGET_S) -> TrialCall:
    """Return what a slot is asked first: what it is, and A/A comparisons beside busy neighbours."""
    arguments = {"checks": checks, "budget_s": budget_s}
    return TrialCall("arrival", "tinytorch.comparison.self_check:arrival", arguments)


# ---------------------------------------------------------------- what a sweep has to do


@dataclass(frozen=True)
class SweepPlan:
    """The trials of a sweep, in a run with this id; `is_resumed` if it was begun before.

    Trials of one kind of machine have a run of their own, whose id begins with this one.
    """

    suite: Suite
    entries: tuple[Entry, ...]
    run: str
    environment: Mapping[str, Any]
    store: Location
    machines: str = EACH
    is_resumed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What two sweeps must have in common for one to go on with the other."""
        keys = [entry.key for entry in self.entries]
        return {"sweep": digest([self.suite.name, self.machines, *keys])}

    def run_on(self, machine: str) -> str:
        """Return the run of the trials on a kind of machine; without one, of all of them."""
        return f"{self.run}{SEPARATOR}{machine or ANY}"


def plan_sweep(
    suite: Suite,
    *,
    seed: int = 0,
    only: str | None = None,
    store: StorePath = None,
    machines: str = EACH,
    again: bool = False,
) -> SweepPlan:
    """Decide what a sweep has to do: the store says what is finished, wherever that was measured.

    An unfinished sweep of the same trials at the same commit goes on, unless `again` is asked for.
    """
    if machines not in MACHINES:
        raise SettingError(f"machines={machines!r}; there are {' and '.join(MACHINES)}")
    entries = select_entries(suite.entries(seed=seed), only)
    environment = describe_environment(os.getcwd()).to_dict()
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    plan = SweepPlan(suite, entries, run, environment, store_path(store), machines)
    with open_store(plan.store) as opened:
        last = _last(opened, plan)
        if last is None or again:
            opened.add(_mark(plan, is_complete=False))
            return plan
        if last.details["is_complete"] or last.details["commit"] != environment["commit"]:
            opened.add(_mark(plan, is_complete=False))
            why = "is complete" if last.details["is_complete"] else "was made at another commit"
            return _noted(plan, f"sweep {last.run} {why}; a new one begins")
        resumed = replace(plan, run=last.run, is_resumed=True)
        done = len(opened.names_in_runs(last.run + SEPARATOR, kind=TRIAL_KIND))
    return _noted(resumed, f"sweep {last.run} goes on: {done} trials are in {plan.store}")


def _noted(plan: SweepPlan, note: str) -> SweepPlan:
    return replace(plan, notes=(*plan.notes, note))


def _mark(plan: SweepPlan, *, is_complete: bool) -> Record:
    """Return the record that says that a sweep has begun, or is complete."""
    details = {
        "suite": plan.suite.name,
        "trials": len(plan.entries),
        "machines": plan.machines,
        "commit": plan.environment["commit"],
        "is_complete": is_complete,
    }
    name, environment = plan.suite.name, plan.environment
    return Record(SWEEP_KIND, name, {}, environment, plan.settings, details, run=plan.run)


def _last(store: RecordStore, plan: SweepPlan) -> Record | None:
    """Return the newest mark of a sweep of the same trials."""
    key = Record(SWEEP_KIND, plan.suite.name, {}, plan.environment, plan.settings).settings_key
    found = store.find(
        kind=SWEEP_KIND, name=plan.suite.name, settings_key=key, newest_first=True, limit=RECENT
    )
    return found[0] if found else None


# ---------------------------------------------------------------- running it


@dataclass(frozen=True)
class TrialDone:
    """A trial that has just been stored, or that was there already (`is_doubled`)."""

    name: str
    slot: str
    machine: str
    failure: str | None
    is_disturbed: bool
    child_s: float
    is_doubled: bool = False


@dataclass
class Sweep:
    """Runs the trials that are not in the store yet; this process alone writes there.

    `serve` is what answers about an entry; `clock` counts the seconds without a slot that can be
    used. With several kinds of machines a result is of the trial and the machine.
    """

    plan: SweepPlan
    executor: Executor
    timeout_s: float | None = None
    serve: str = SERVICE
    clock: Callable[[], float] = monotonic
    finished: int = 0
    """Trials that are in the store, those from before included."""
    planned: int = 0
    _offered: set[str] = field(default_factory=set)
    _waiting: Counter[str] = field(default_factory=Counter)

    def run(self) -> Iterator[TrialDone]:
        """Yield each trial as soon as it is stored.

        Raise MeasurementError where there is no slot that can be used; what is stored stays, and
        the same sweep goes on from there.
        """
        if not self.executor.reports:
            raise SettingError("a sweep needs slots that report: give the executor an arrival=")
        last_seen, seen = self.clock(), dict[str, float]()
        entries = {entry.name: entry for entry in self.plan.entries}
        with open_store(self.plan.store) as store:
            while True:
                self._offer_trials(store)
                for result in self.executor.wait(POLL_S):
                    self._waiting[result.machine if self.plan.machines == EACH else ""] -= 1
                    yield self._keep(store, entries[result.key], result)
                usable = [each for each in self.executor.slots if not each.obstacle]
                now = self.clock()
                if usable:
                    last_seen = now
                self._check_slots(usable, now - last_seen)
                seen = dict.fromkeys(self._waiting, now) | seen
                seen |= {each.machine: now for each in usable}
                self._check_machines(now, seen)
                is_there = bool(usable) and all(each.machine for each in usable)
                if is_there and not self._waiting.total() and not self._not_offered():
                    break
            store.add(_mark(self.plan, is_complete=True))

    def _offer_trials(self, store: RecordStore) -> None:
        """Submit the trials of each kind of machine that has arrived, unless they are stored."""
        for machine in self._not_offered():
            run = self.plan.run_on(machine)
            stored = {name for _, name in store.names_in_runs(run, kind=TRIAL_KIND)}
            self._offered.add(machine)
            self.planned += len(self.plan.entries)
            self.finished += len(stored)
            timeout_s = self.timeout_s or self.plan.suite.timeout_s
            for entry in self.plan.entries:
                if entry.name not in stored:
                    self._waiting[machine] += 1
                    call = entry_call(entry, timeout_s=timeout_s, machine=machine, serve=self.serve)
                    self.executor.submit(call.from_here())

    def _not_offered(self) -> list[str]:
        """Return the kinds of machines that have arrived since; all are one where any will do."""
        machines = {x.machine for x in self.executor.slots if x.machine and not x.obstacle}
        wanted = machines if self.plan.machines == EACH else {""} if machines else set()
        return sorted(wanted - self._offered)

    def _keep(self, store: RecordStore, entry: Entry, result: TrialResult) -> TrialDone:
        """Store a trial, unless it is there; a failure is a result with its reason."""
        machine = result.machine if self.plan.machines == EACH else ""
        report = next((x for x in self.executor.slots if x.name == result.slot), None)
        answer = entry_answer(result)
        record = entry_record(
            entry,
            answer,
            kind=TRIAL_KIND,
            run=self.plan.run_on(machine),
            environment=report.environment if report else self.plan.environment,
            details={
                "suite": self.plan.suite.name,
                "slot": _slot_fields(result, report),
                "started_at_commit": self.plan.environment["commit"],
            },
        )
        hash = store.add(record)
        is_doubled = not store.known([hash])  # another driver was faster
        self.finished += 1
        return TrialDone(
            *(entry.name, result.slot, result.machine, answer.failure),
            *(result.is_disturbed, result.child_s, is_doubled),
        )

    def _check_machines(self, now: float, seen: Mapping[str, float]) -> None:
        for machine, count in self._waiting.items():
            if machine and count and now - seen.get(machine, now) > PATIENCE_S:
                raise MeasurementError(
                    f"{count} trials wait for machine {machine[:8]}, which has had no slot for "
                    f"{PATIENCE_S:.0f} s; what is finished is stored: the same command goes on"
                )

    def _check_slots(self, usable: Sequence[SlotReport], missing_s: float) -> None:
        slots = self.executor.slots
        is_settled = bool(slots) and not getattr(self.executor, "arriving", 0)
        if usable or missing_s < (OBSTACLE_S if is_settled else PATIENCE_S):
            return
        reasons = dict.fromkeys(f"{each.name}: {each.obstacle}" for each in slots)
        why = "; ".join(reasons) or f"none has arrived for {PATIENCE_S:.0f} s"
        raise MeasurementError(
            f"no slot can be used ({why}); what is finished is stored: the same command goes on"
        )


def _slot_fields(result: TrialResult, report: SlotReport | None) -> dict[str, Any]:
    found = {"name": result.slot, "machine": result.machine, "is_disturbed": result.is_disturbed}
    if report is not None:
        found |= {"floor": report.floor, "foreign_load": report.foreign_load}
    return found


# ---------------------------------------------------------------- what came of it


@dataclass(frozen=True)
class SweepResult(Coded, Shown):
    """What is stored of a sweep: the outcomes on each kind of machine, by its fingerprint.

    `slots` are those of this start; earlier ones may have measured a part.
    """

    suite: str
    run: str
    trials: int
    machines: Mapping[str, tuple[EntryOutcome, ...]]
    slots: tuple[SlotReport, ...] = ()
    notes: tuple[str, ...] = ()
    is_shared: bool = False
    """Whether the machines share the trials: each was to be run once, on any of them."""

    @property
    def outcomes(self) -> tuple[EntryOutcome, ...]:
        return tuple(each for found in self.machines.values() for each in found)

    @property
    def failed(self) -> tuple[EntryOutcome, ...]:
        return tuple(each for each in self.outcomes if each.failure is not None)

    @property
    def is_complete(self) -> bool:
        if self.is_shared:
            return len(self.outcomes) == self.trials
        counts = [len(found) for found in self.machines.values()]
        return bool(counts) and all(count == self.trials for count in counts)


def sweep_result(plan: SweepPlan, slots: Sequence[SlotReport] = ()) -> SweepResult:
    """Read what is stored of a sweep, in the order of the suite."""
    places = {entry.name: place for place, entry in enumerate(plan.entries)}
    found: dict[str, list[EntryOutcome]] = {}
    with open_store(plan.store) as store:
        pairs = store.names_in_runs(plan.run + SEPARATOR, kind=TRIAL_KIND)
        for run in sorted({run for run, _ in pairs}):
            for record in store.find(kind=TRIAL_KIND, run=run):
                found.setdefault(_machine_of(record), []).append(EntryOutcome(record))
        if store.damaged:
            raise RecordError(f"{len(store.damaged)} records of {plan.store} cannot be read")
    machines = {
        machine: tuple(sorted(each, key=lambda x: places.get(x.name, len(places))))
        for machine, each in found.items()
    }
    is_shared = plan.machines == ANY
    name, count = plan.suite.name, len(places)
    return SweepResult(name, plan.run, count, machines, tuple(slots), plan.notes, is_shared)


def _machine_of(record: Record) -> str:
    """Return the fingerprint of the slot; the process itself may have loaded other libraries."""
    return str(record.details["slot"]["machine"] or record.machine)
