"""Running a suite: one fresh process after the other, each result kept as soon as it is there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.perf.benchmarking.entries import Entry, Suite, digest
from tinytorch.perf.benchmarking.entry_process import EntryAnswer, run_entry
from tinytorch.records.location import store_path
from tinytorch.records.store import RecordStore, keep, open_store
from tinytorch.records.suite_outcome import ENTRY_KIND, EntryOutcome
from tinytorch.records.trends import comparable
from tinytorch.workloads.record import Record

__all__ = ["RunPlan", "plan_run", "run_suite", "select_entries"]

StorePath = str | os.PathLike[str] | None
RECENT = 20
"""So many records of a name are looked at for one to compare with."""


@dataclass(frozen=True)
class RunPlan:
    """Which entries to run, in a run with this id; `finished` ones are there from before."""

    suite: Suite
    entries: tuple[Entry, ...]
    run: str
    environment: Mapping[str, Any]
    finished: Mapping[str, Record] = field(default_factory=dict)
    store: StorePath = None
    notes: tuple[str, ...] = ()

    @property
    def suite_key(self) -> str:
        return _suite_key(self.suite, self.entries)


def select_entries(entries: Sequence[Entry], pattern: str | None) -> tuple[Entry, ...]:
    """Give the entries whose name holds a text, or fits a pattern with ``*`` and ``?``."""
    if not pattern:
        return tuple(entries)
    wild = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    found = tuple(entry for entry in entries if fnmatchcase(entry.name, wild))
    if not found:
        names = [entry.name for entry in entries]
        near = get_close_matches(pattern, names, n=1, cutoff=0.3) or names[:1]
        raise SettingError(f"no entry fits {pattern!r}; there is, for example, {near[0]!r}")
    return found


def plan_run(
    suite: Suite,
    *,
    seed: int = 0,
    only: str | None = None,
    store: StorePath = None,
    resume: bool = False,
) -> RunPlan:
    """Decide what a run has to do.

    With `resume` the last run of the same entries goes on, if it is unfinished and was made on
    this machine, with these thread settings, at this commit; otherwise a new one begins, and a
    note says why.
    """
    entries = select_entries(suite.entries(seed=seed), only)
    environment = describe_environment(os.getcwd()).to_dict()
    key = _suite_key(suite, entries)
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    notes: list[str] = []
    finished: dict[str, Record] = {}
    with open_store(store) as opened:
        last = _last_run(opened, entries, key)
    if resume and not last:
        notes.append("there is no run of these entries to resume; a new one begins")
    elif last:
        one, is_whole = next(iter(last.values())), len(last) == len(entries)
        obstacle = "it is complete" if is_whole else _obstacle(one, environment)
        if resume and not obstacle:
            run, finished = one.run, last
            notes.append(f"run {run} goes on: {len(last)} of {len(entries)} entries are there")
            if one.commit_has_changes:
                notes.append(
                    "files have changed since the commit; nobody checks whether since then"
                )
        elif resume:
            notes.append(f"run {one.run} is not resumed: {obstacle}; a new one begins")
        elif not obstacle:
            done = f"{len(last)} of {len(entries)} entries"
            notes.append(f"run {one.run} is unfinished ({done}); --resume would go on with it")
    return RunPlan(suite, entries, run, environment, finished, store, tuple(notes))


def run_suite(
    plan: RunPlan,
    *,
    timeout_s: float | None = None,
    fail_fast: bool = False,
    starting: Callable[[Entry], None] = lambda entry: None,
) -> Iterator[EntryOutcome]:
    """Yield what becomes of each entry, as soon as it is measured and stored.

    Entries that are there from before come too, in their place, without being measured again.
    With `fail_fast` the first failure is the last outcome.
    """
    for entry in plan.entries:
        before = plan.finished.get(entry.name)
        if before is not None:
            record, kept_note = before, ""
        else:
            starting(entry)
            answer = run_entry(entry, timeout_s=timeout_s or plan.suite.timeout_s)
            record = _record(plan, entry, answer)
            kept_note = keep(record, store_path(plan.store)).note
        with_previous = _compared(record, store_path(plan.store), is_stored=not kept_note)
        outcome = EntryOutcome(
            record, *with_previous, is_from_before=before is not None, kept_note=kept_note
        )
        yield outcome
        if fail_fast and outcome.failure is not None:
            return


def _suite_key(suite: Suite, entries: Sequence[Entry]) -> str:
    return digest([suite.name, *(entry.key for entry in entries)])


def _last_run(store: RecordStore, entries: Sequence[Entry], key: str) -> dict[str, Record]:
    """Give the records of the newest run of exactly these entries, by name."""
    newest: Record | None = None
    for entry in entries:
        for record in store.find(kind=ENTRY_KIND, name=entry.name, newest_first=True, limit=RECENT):
            if record.details.get("suite_key") == key:
                if newest is None or record.created_at > newest.created_at:
                    newest = record
                break
    if newest is None:
        return {}
    found = store.find(kind=ENTRY_KIND, run=newest.run)
    return {record.name: record for record in found if record.details.get("suite_key") == key}


def _obstacle(record: Record, environment: Mapping[str, Any]) -> str:
    """Say why a run of another day cannot go on here, or nothing."""
    if record.details.get("started_on") != environment["fingerprint"]:
        return "the machine, its thread settings or its libraries have changed"
    if record.details.get("started_at_commit") != environment["commit"]:
        return "it was made at another commit, or files were changed"
    return ""


def _record(plan: RunPlan, entry: Entry, answer: EntryAnswer) -> Record:
    failure = {} if answer.failure is None else {"failure": answer.failure}
    return Record(
        kind=ENTRY_KIND,
        name=entry.name,
        samples=answer.samples,
        environment=answer.environment or plan.environment,
        settings=entry.settings,
        details={
            **answer.details,
            **failure,
            "suite": plan.suite.name,
            "suite_key": plan.suite_key,
            "entry_key": entry.key,
            "started_on": plan.environment["fingerprint"],
            "started_at_commit": plan.environment["commit"],
        },
        run=plan.run,
        notes=answer.notes,
    )


def _compared(
    record: Record, store: os.PathLike[str], *, is_stored: bool
) -> tuple[Record | None, str]:
    """Give the last record of the same series that has numbers, or why there is none."""
    if not record.samples or not is_stored:
        return None, ""
    server = record.details.get("server")
    if server is not None and not server["bound_is_given"]:
        return None, "its bound follows the latency of each run; give latency_bound_ms to compare"
    with open_store(store) as opened:
        others = opened.find(kind=ENTRY_KIND, name=record.name, newest_first=True, limit=RECENT)
    earlier = [
        other
        for other in others
        if other.samples and other.run != record.run and other.created_at <= record.created_at
    ]
    reasons = [comparable(other, record) for other in earlier]
    for other, reason in zip(earlier, reasons, strict=True):
        if reason is None:
            return other, ""
    return None, reasons[0] or "" if reasons else ""
