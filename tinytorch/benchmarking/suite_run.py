"""Running a suite: one fresh process after the other, each result kept as soon as it is there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from tinytorch.benchmarking.suite_file import Entry, Suite, digest
from tinytorch.codec import decode
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import PERCENTILES
from tinytorch.errors import SettingError
from tinytorch.measure import child_process
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.executor import (
    NOT_STARTED,
    TrialCall,
    TrialResult,
    run_alone,
)
from tinytorch.measure.samples import Samples
from tinytorch.records.history import comparable
from tinytorch.records.location import Location, store_path
from tinytorch.records.record import Record
from tinytorch.records.store import RecordStore, keep, open_store

# ---------------------------------------------------------------- starting a fresh process for an
# entry of a suite, and what becomes of it

SERVICE = "tinytorch.benchmarking.entry_worker:answer"


@dataclass(frozen=True)
class EntryAnswer:
    """What the process of an entry found, or in `failure` why there is nothing."""

    samples: Mapping[str, Samples] = field(default_factory=dict)
    environment: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failure: str | None = None


def entry_call(
    entry: Entry, *, timeout_s: float, machine: str = "", serve: str = SERVICE
) -> TrialCall:
    """Return what a fresh process is asked about an entry; its key tells entries of a run apart."""
    return TrialCall(entry.name, serve, {"entry": entry.to_dict()}, timeout_s, machine)


def entry_answer(result: TrialResult) -> EntryAnswer:
    """Return what a process found, with the doubts of the slot that it ran on."""
    notes = tuple(map(str, result.notes))
    if result.failure is not None:
        is_late = result.failure.code == child_process.TIMED_OUT
        hint = "; allow more with a longer timeout" if is_late else ""
        return EntryAnswer(failure=f"{result.failure}{hint}", notes=notes)
    found = decode(EntryAnswer, result.answer)
    return replace(found, notes=(*found.notes, *notes))


def run_entry(entry: Entry, *, timeout_s: float) -> EntryAnswer:
    """Measure an entry in a fresh process; never raise for what happens there.

    The process, and what it started, are ended when it takes longer than `timeout_s`, when this
    call is interrupted, and when this process dies. What the target prints is shown only as part
    of a failure.
    """
    result = run_alone(entry_call(entry, timeout_s=timeout_s))
    if result.failure is not None and result.failure.code == NOT_STARTED:
        raise SettingError(str(result.failure))
    return entry_answer(result)


# ---------------------------------------------------------------- what became of an entry of a
# suite: a record, seen through what a reader asks for

ENTRY_KIND = "suite entry"
# Scenario -> what it is about, and whether more of it is better.
MAIN_METRIC = {
    "single-stream": ("latency", False),
    "offline": ("throughput", True),
    "server": ("rate", True),
    "comparison": ("time ratio", False),
}


@dataclass(frozen=True)
class EntryOutcome:
    """A finished entry, and the last record that it may be compared with.

    Without one, `not_compared` may say why. `kept_note` is empty unless the result did not get
    into the store.
    """

    record: Record
    previous: Record | None = None
    not_compared: str = ""
    is_from_before: bool = False
    kept_note: str = ""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def target(self) -> str:
        return str(self.record.settings["target"])

    @property
    def scenario(self) -> str:
        return str(self.record.settings["scenario"]["name"])

    @property
    def label(self) -> str:
        """The name without the scenario."""
        return self.name.removesuffix(f"/{self.scenario}")

    @property
    def failure(self) -> str | None:
        """Why there is no number, or None."""
        return self.record.details.get("failure")

    @property
    def main_metric(self) -> str:
        return MAIN_METRIC[self.scenario][0]

    @property
    def main(self) -> Samples | None:
        """What the scenario is about: latency, throughput or rate."""
        return self.record.samples.get(self.main_metric)

    @property
    def latency(self) -> Samples | None:
        return self.record.samples.get("latency")

    @property
    def server(self) -> Mapping[str, Any] | None:
        """What the search for a rate has found."""
        return self.record.details.get("server")

    @cached_property
    def comparison(self) -> Comparison | None:
        """The transformed model against the model as it is, in the scenario about that."""
        found = self.record.details.get("comparison")
        return None if found is None else Comparison.from_dict(found)

    @property
    def accuracy(self) -> Mapping[str, Any] | None:
        """The mean score with its interval: metric, mean, low, high, count."""
        return self.record.details.get("accuracy")

    @property
    def peak_bytes(self) -> float | None:
        return self._only_value("peak memory")

    @property
    def file_bytes(self) -> float | None:
        return self._only_value("file size")

    @property
    def seconds_per_example(self) -> float | None:
        """The time that an example takes, from latency or throughput; a call where it is one."""
        if self.failure is not None or self.main is None or self.scenario == "comparison":
            return None
        if self.main_metric == "latency":
            return self.main.median / (self.record.details.get("examples") or 1)
        return 1 / self.main.median if self.main.median else None

    @property
    def seconds_per_example_interval(self) -> Estimate | None:
        """The interval that belongs to :attr:`seconds_per_example`; None where there is none."""
        if self.seconds_per_example is None or self.main is None or self.main.count < 2:
            return None
        found = self.main.median_interval()
        if self.main_metric == "latency":
            examples = self.record.details.get("examples") or 1
            return found.scaled(1 / examples)
        return found.inverse if found.low > 0 else None

    @property
    def time_ratio(self) -> float | None:
        """The time now over the time of the record before; above 1 it has become slower.

        The two were measured in different runs: it is a hint, and no comparison.
        """
        if self.previous is None or self.main is None:
            return None
        before = self.previous.samples.get(self.main_metric)
        if before is None or not before.median or not self.main.median:
            return None
        ratio = self.main.median / before.median
        return 1 / ratio if MAIN_METRIC[self.scenario][1] else ratio

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the raw values, ready for JSON; those are in the record."""
        details = self.record.details
        accuracy = {key: each for key, each in (self.accuracy or {}).items() if key != "scores"}
        return {
            "name": self.name,
            "settings": self.record.settings,
            "failure": self.failure,
            "latency": _percentiles(self.latency),
            "throughput": _throughput(self.record.samples.get("throughput")),
            "server": self.server,
            **({} if self.comparison is None else {"comparison": _ratio_fields(self.comparison)}),
            "accuracy": accuracy or None,
            "peak_memory_bytes": self.peak_bytes,
            "file_bytes": self.file_bytes,
            "not_measured": details.get("resources", {}).get("not_measured", {}),
            **{key: details.get(key) for key in ("examples", "framework", "device", "backend")},
            "notes": list(self.record.notes),
            "time_ratio_to_previous": self.time_ratio,
            "previous": self.previous.hash if self.previous else None,
            "not_compared": self.not_compared or None,
            "is_from_before": self.is_from_before,
            "kept_note": self.kept_note or None,
            "machine": self.record.machine,
            "record": self.record.hash,
        }

    def _only_value(self, metric: str) -> float | None:
        samples = self.record.samples.get(metric)
        return None if samples is None else samples.median


def _ratio_fields(comparison: Comparison) -> dict[str, Any]:
    """Return what a comparison concludes; its rounds are in the record."""
    ratio, accuracy = comparison.ratio, comparison.accuracy
    return {
        "verdict": comparison.verdict,
        "time_ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "n": comparison.n,
        "accuracy": None if accuracy is None else accuracy.verdict,
    }


def _percentiles(latency: Samples | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    found: dict[str, Any] = {"count": latency.count}
    for q in PERCENTILES:
        interval = latency.percentile_interval(q)
        value = latency.percentile(q)
        found[f"p{q:g}"] = {"value_s": value, "low_s": interval.low, "high_s": interval.high}
    return found


def _throughput(throughput: Samples | None) -> dict[str, Any] | None:
    if throughput is None:
        return None
    interval = throughput.median_interval()
    return {
        "median": throughput.median,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.coverage,
        "unit": throughput.unit,
        "rounds": throughput.count,
    }


# ---------------------------------------------------------------- running a suite: one fresh
# process after the other, each result kept as soon as it is there

StorePath = str | os.PathLike[str] | None
RECENT = 20
"""Number of recent records that are searched for a comparable one."""


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
    """Return the entries whose name contains a text or matches a pattern with ``*`` and ``?``."""
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
                notes.append("files have changed since the commit, perhaps during the run")
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
    """Return the records of the newest run of exactly these entries, by name."""
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
    """Return why an earlier run cannot be resumed here, or ""."""
    if record.details.get("started_on") != environment["fingerprint"]:
        return "the machine, its thread settings or its libraries have changed"
    if record.details.get("started_at_commit") != environment["commit"]:
        return "it was made at another commit, or files were changed"
    return ""


def _record(plan: RunPlan, entry: Entry, answer: EntryAnswer) -> Record:
    details = {
        "suite": plan.suite.name,
        "suite_key": plan.suite_key,
        "started_on": plan.environment["fingerprint"],
        "started_at_commit": plan.environment["commit"],
    }
    return entry_record(entry, answer, run=plan.run, environment=plan.environment, details=details)


def entry_record(
    entry: Entry,
    answer: EntryAnswer,
    *,
    run: str,
    environment: Mapping[str, Any],
    details: Mapping[str, Any],
    kind: str = ENTRY_KIND,
) -> Record:
    """Make a record of what was found; `environment` is used where the process named none."""
    failure = {} if answer.failure is None else {"failure": answer.failure}
    return Record(
        kind=kind,
        name=entry.name,
        samples=answer.samples,
        environment=answer.environment or environment,
        settings=entry.settings,
        details={**answer.details, **failure, **details, "entry_key": entry.key},
        run=run,
        notes=answer.notes,
    )


def _compared(record: Record, store: Location, *, is_stored: bool) -> tuple[Record | None, str]:
    """Return the last comparable record with measurements, or why there is none."""
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


# ---------------------------------------------------------------- which models are not beaten: the
# Pareto front

Point = Sequence[float]


def dominates(first: Point, second: Point, *, lower_is_better: Sequence[bool]) -> bool:
    """Return whether the first is at least as good in every objective and better in one."""
    signs = [1 if lower else -1 for lower in lower_is_better]
    pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, first, second, strict=True)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(points: Mapping[str, Point], *, lower_is_better: Sequence[bool]) -> list[str]:
    """Return the names of the non-dominated points, best in the first objective first.

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


# ---------------------------------------------------------------- which entries of a suite no
# other beats: time against accuracy, and time against memory

TIMED = ("single-stream", "offline")


@dataclass(frozen=True)
class Front:
    """Entries of one target: seconds per example against something else.

    `points` has both by the name of the entry, `front` those that no other beats, fastest first.
    """

    target: str
    objective: str
    unit: str
    points: dict[str, tuple[float, float]]
    front: tuple[str, ...]


def suite_fronts(outcomes: Sequence[EntryOutcome]) -> tuple[Front, ...]:
    """Return the Pareto fronts of every target, over entries timed in the same scenario.

    Entries of different targets do different work and are not set against each other, and neither
    are those of different scenarios: the first scenario of a target that has a time counts.
    """
    fronts = []
    for target in dict.fromkeys(each.target for each in outcomes):
        timed = _timed_alike([each for each in outcomes if each.target == target])
        metrics = dict.fromkeys(str(each.accuracy["metric"]) for each in timed if each.accuracy)
        for metric in metrics:
            unit = "%" if metric == "accuracy" else ""
            fronts.append(_front(target, metric, unit, timed, _score_of(metric), lower=False))
        fronts.append(
            _front(target, "peak memory", "B", timed, lambda each: each.peak_bytes, lower=True)
        )
    return tuple(each for each in fronts if each.points)


def _timed_alike(outcomes: Sequence[EntryOutcome]) -> list[EntryOutcome]:
    for scenario in TIMED:
        found = [
            each
            for each in outcomes
            if each.scenario == scenario and each.seconds_per_example is not None
        ]
        if found:
            return found
    return []


def _score_of(metric: str) -> Callable[[EntryOutcome], float | None]:
    def score(outcome: EntryOutcome) -> float | None:
        found = outcome.accuracy
        return float(found["mean"]) if found and found["metric"] == metric else None

    return score


def _front(
    target: str,
    objective: str,
    unit: str,
    outcomes: Sequence[EntryOutcome],
    value_of: Callable[[EntryOutcome], float | None],
    *,
    lower: bool,
) -> Front:
    points = {}
    for each in outcomes:
        seconds, value = each.seconds_per_example, value_of(each)
        if seconds is not None and value is not None:
            points[each.name] = (seconds, value)
    front = pareto_front(points, lower_is_better=(True, lower))
    return Front(target, objective, unit, points, tuple(front))
