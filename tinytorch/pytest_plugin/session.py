"""What one run of pytest has measured: collected, kept, compared with an earlier run, written."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import uuid4

import pytest

from tinytorch import __version__
from tinytorch.codec import encode
from tinytorch.errors import ModelError, SettingError, TinyTorchError
from tinytorch.pytest_plugin import options

if TYPE_CHECKING:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.measure.samples import Samples
    from tinytorch.records.record import Record
    from tinytorch.records.store import RecordStore


REPORT_FIELD = "tinytorch_perf"
SCHEMA = 1
KIND = "test"


@dataclass(frozen=True)
class Measured:
    """A function that a test has measured."""

    name: str
    group: str
    file: str
    function: str
    samples: Samples
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """Two things that a test has compared; `open` says what the test could not show.

    What a test has compared that did not pass is shown, but not kept.
    """

    name: str
    group: str
    file: str
    function: str
    comparison: Comparison
    open: str = ""
    has_passed: bool = True


@dataclass(frozen=True)
class Against:
    """A test of this run against the stored one; `reason` says why they cannot be compared.

    `ratio` is of medians, this run's over the stored one's. Between two runs anything may have
    changed, so there is no verdict.
    """

    name: str
    ratio: float | None = None
    stored: float | None = None
    created_at: str = ""
    hash: str = ""
    commit: str | None = None
    reason: str = ""


@dataclass
class PerfSession:
    """The plugin object of one run, in the process that writes the summary."""

    config: pytest.Config
    measured: dict[str, Measured] = field(default_factory=dict)
    compared: dict[str, Compared] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    against: list[Against] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = options.settings_of(self.config)
        self.run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
        self._kept = 0
        if self.settings.compare_with not in (None, options.LAST):
            self._check_stored_run()

    @cached_property
    def environment(self) -> dict[str, Any]:
        from tinytorch.measure.environment import describe_environment

        return describe_environment(self.config.rootpath).to_dict()

    # ------------------------------------------------------------ hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store what a test has measured immediately, so that a killed run loses little."""
        for line in getattr(report, REPORT_FIELD, ()):
            fields = json.loads(line)
            entry: Compared | Measured
            if "comparison" in fields:
                entry = _compared(fields, has_passed=report.passed)
                self.compared[entry.name] = entry
            else:
                entry = _measured(fields)
                if report.passed:
                    self.measured[entry.name] = entry
                else:
                    self.left_out.append(entry.name)
            if self.settings.save and report.passed:
                self._save(entry)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare with the stored run and write the file."""
        try:
            if self.settings.compare_with is not None:
                self.against = list(self._compare_with_stored(self.settings.compare_with))
            if self.settings.json_file is not None:
                self._write_json()
        except (TinyTorchError, OSError) as error:
            self.problems.append(str(error))
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the tables."""
        if not (self.measured or self.compared or self.left_out or self.problems):
            return
        from tinytorch.pytest_plugin.summary import write_summary

        if self._kept:
            found = "record" if self._kept == 1 else "records"
            self.messages.append(f"{self._kept} {found} kept, run {self.run}")
        write_summary(self, terminalreporter)

    # ------------------------------------------------------------ records

    def record(self, entry: Measured | Compared) -> Record:
        """Make the record of a test."""
        from tinytorch.records.record import Record, comparison_record

        if isinstance(entry, Compared):
            return comparison_record(
                entry.comparison,
                name=entry.name,
                kind=KIND,
                run=self.run,
                settings={"measured by": "tinytorch"},
                folder=self.config.rootpath,
            )
        return Record(
            kind=KIND,
            name=entry.name,
            samples={"latency": entry.samples},
            environment=self.environment,
            settings={"measured by": "tinytorch", **entry.settings},
            details={"group": entry.group},
            run=self.run,
            notes=entry.samples.notes,
        )

    def _save(self, entry: Measured | Compared) -> None:
        from tinytorch.records.store import keep

        try:
            kept = keep(self.record(entry), self.settings.store)
        except TinyTorchError as error:
            self.problems.append(f"{entry.name}: {error}")
            return
        self._kept += 1
        if kept.note and kept.note not in self.messages:
            self.messages.append(kept.note)

    def _check_stored_run(self) -> None:
        """Refuse a record that is not there before anything is measured."""
        from tinytorch.records.location import store_path

        assert self.settings.compare_with is not None
        path = store_path(self.settings.store)
        if not path.exists():
            raise pytest.UsageError(f"--perf-compare: there is no {path}; --perf-save fills it")
        try:
            with self._store() as store:
                store.get(self.settings.compare_with)
        except TinyTorchError as error:
            raise pytest.UsageError(f"--perf-compare: {error}") from error

    def _store(self) -> RecordStore:
        from tinytorch.records.store import open_store

        return open_store(self.settings.store)

    def _compare_with_stored(self, which: str) -> Iterator[Against]:
        from tinytorch.records.location import store_path

        path = store_path(self.settings.store)
        if not path.exists():
            self.messages.append(
                f"nothing to compare with: there is no {path}; --perf-save fills it"
            )
            return
        with self._store() as store:
            chosen = None if which == options.LAST else store.get(which)
            for entry in self.measured.values():
                yield _against(self.record(entry), self._earlier(store, entry.name, chosen))

    def _earlier(self, store: RecordStore, name: str, chosen: Record | None) -> list[Record]:
        """Return the stored records of a test, newest first: of the chosen run, or of others."""
        if chosen is not None and not chosen.run:
            return [chosen] if chosen.name == name else []
        run = None if chosen is None else chosen.run
        found = store.find(kind=KIND, name=name, run=run, newest_first=True)
        return [record for record in found if record.run != self.run]

    # ------------------------------------------------------------ for programs

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "tinytorch": __version__,
            "run": self.run,
            "environment": self.environment,
            "tests": [
                {**vars(each), "median": each.samples.median} for each in self.measured.values()
            ],
            "comparisons": list(self.compared.values()),
            "left_out": self.left_out,
            "against": self.against,
        }
        plain: dict[str, Any] = encode(found)
        return plain

    def _write_json(self) -> None:
        from tinytorch.core.files import write_atomically

        assert self.settings.json_file is not None
        with write_atomically(self.settings.json_file.absolute()) as temporary:
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
            temporary.write_text(text + "\n", "utf-8")
        self.messages.append(f"wrote {self.settings.json_file}")


def _measured(fields: Mapping[str, Any]) -> Measured:
    from tinytorch.measure.samples import Samples

    return Measured(
        **_place(fields),
        samples=Samples.from_dict(fields["samples"]),
        settings={**fields["settings"], "clock": fields["clock"]},
    )


def _compared(fields: Mapping[str, Any], *, has_passed: bool) -> Compared:
    from tinytorch.comparison.comparison import Comparison

    return Compared(
        **_place(fields),
        comparison=Comparison.from_dict(fields["comparison"]),
        open=fields.get("open", ""),
        has_passed=has_passed,
    )


def _place(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: fields[name] for name in ("name", "group", "file", "function")}


def _against(now: Record, earlier: list[Record]) -> Against:
    """Compare with the newest record that may be compared, or say what differs from the newest."""
    from tinytorch.records.history import comparable

    if not earlier:
        return Against(now.name, reason="no stored record of this test")
    reasons = [comparable(record, now, "latency") for record in earlier]
    stored = next((r for r, why in zip(earlier, reasons, strict=True) if why is None), None)
    if stored is None:
        return Against(now.name, reason=f"not comparable: {reasons[0]}", hash=earlier[0].hash)
    before, after = stored.samples["latency"].median, now.samples["latency"].median
    return Against(
        now.name,
        ratio=after / before if before else None,
        stored=before,
        created_at=stored.created_at,
        hash=stored.hash,
        commit=stored.commit,
    )


# ---------------------------------------------------------------- the fixture `perf`: measures and
# compares inside of a test

OFF = "comparing takes time and is off; give --perf"
ENTRIES = pytest.StashKey[list[str]]()

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def entries_of(item: pytest.Item) -> list[str]:
    """Return what was measured in a test: lines of JSON, which every process can send."""
    return item.stash.get(ENTRIES, [])


class Perf:
    """Measure a function in a test, or compare two; without ``--perf`` tests only check results."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        self.is_on = options.is_on(node.config)
        self.samples: Samples | None = None
        """What the last call of this object has measured."""
        self._options = options.settings_of(node.config)
        self._marked = options.marker_settings(node)
        node.stash[ENTRIES] = []

    def __repr__(self) -> str:
        return "perf"

    def __call__(
        self,
        function: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Call a function and give its result; when measuring is on, call it again and again.

        The result is that of the first call.
        """
        __tracebackhide__ = True
        result = function(*args, **kwargs)
        if not self.is_on:
            return result
        _refuse_lazy(result, function)
        from tinytorch.measure.timing import fitting_clock, measure_time

        settings = self._settings(options.MEASURING)
        clock = fitting_clock()
        call = partial(function, *args, **kwargs) if args or kwargs else function
        samples = measure_time(call, name="latency", clock=clock, **settings)
        self.samples = samples.with_notes(*self._doubts())
        self._keep({"samples": self.samples.to_dict(), "settings": settings, "clock": clock.name})
        return result

    def compare(self, baseline: Any, candidate: Any, **settings: Any) -> Comparison:
        """Compare two things as :func:`tinytorch.compare` does, with its settings.

        Its `verdict` is about time alone; accuracy and outputs are beside it. Without
        ``--perf`` the test is skipped.
        """
        __tracebackhide__ = True
        comparison = self._compare(baseline, candidate, settings)
        self._keep({"comparison": comparison.to_dict()})
        return comparison

    def assert_not_slower(
        self, baseline: Any, candidate: Any, *, tolerance: float = 0.05, **settings: Any
    ) -> Comparison:
        """Fail when the candidate is shown to take more than `tolerance` longer, or to be worse.

        It is worse with less accuracy, when it cannot be evaluated, and with broken outputs: of
        another number or shape, or not finite where the baseline's are (``evidence=False`` compares
        time alone). What is inconclusive, about time or accuracy, is named in the
        summary, and a failure with ``--perf-strict``. Without ``--perf`` the test is skipped.
        """
        __tracebackhide__ = True
        if not 0 < tolerance < 10:
            raise SettingError(f"tolerance={tolerance}; it must be a share such as 0.05")
        if not self.is_on:
            pytest.skip(OFF)
        from tinytorch.comparison.comparison import quality_doubt, quality_loss
        from tinytorch.reporting.quantities import ratio_text

        settings.setdefault("is_known", lambda ratio: ratio.is_below(1 + tolerance) is not None)
        found = self._compare(baseline, candidate, settings)
        is_within = None if found.contradiction else found.ratio.is_below(1 + tolerance)
        ends = f"{ratio_text(found.time_ratio_low)} to {ratio_text(found.time_ratio_high)}"
        shown = (
            f"{ratio_text(found.time_ratio)} the time ({ends}), n={found.n} rounds, "
            f"tolerance {100 * tolerance:.3g}%"
        )
        open_time = f"time is inconclusive: {shown}" if is_within is None else ""
        open_question = "; ".join(filter(None, (open_time, quality_doubt(found))))
        self._keep({"comparison": found.to_dict(), "open": open_question})
        if loss := quality_loss(found):
            pytest.fail(loss)
        if is_within is False:
            pytest.fail(f"{found.candidate_name} is slower than {found.baseline_name}: {shown}")
        if open_question and self._options.is_strict:
            pytest.fail(f"{open_question}; --perf-strict makes that a failure")
        return found

    def _compare(self, baseline: Any, candidate: Any, settings: dict[str, Any]) -> Comparison:
        __tracebackhide__ = True
        if not self.is_on:
            pytest.skip(OFF)
        from tinytorch.comparison.compare import compare

        found = compare(baseline, candidate, **{**self._settings(options.COMPARING), **settings})
        return found.with_notes(*self._doubts())

    def _settings(self, known: tuple[str, ...]) -> dict[str, Any]:
        budget = {} if self._options.budget_s is None else {"budget_s": self._options.budget_s}
        marked = {name: value for name, value in self._marked.items() if name in known}
        return {**budget, **marked}

    def _keep(self, entry: dict[str, Any]) -> None:
        entries = self._node.stash[ENTRIES]
        again = f" ({len(entries) + 1})" if entries else ""
        place, _, _ = self._node.nodeid.partition("::")
        named = {
            "name": self._node.nodeid + again,
            "file": place,
            "function": getattr(self._node, "originalname", None) or self._node.name,
            "group": str(self._marked.get("group", "")),
        }
        entries.append(json.dumps({**named, **entry}))

    def _doubts(self) -> list[str]:
        doubts = []
        if options.is_worker(self._node.config):
            count = self._node.config.workerinput["workercount"]  # type: ignore[attr-defined]
            if count > 1:
                doubts.append(f"disturbed: measured in parallel with other tests (-n {count})")
        if _is_traced():
            doubts.append("coverage or a debugger was active, which slows Python code down")
        return doubts


def _refuse_lazy(result: object, function: object) -> None:
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ModelError(
            f"{getattr(function, '__name__', 'the function')} returned a "
            f"{type(result).__name__}, which has computed nothing yet; measure a function that "
            "runs it to the end"
        )


def _is_traced() -> bool:
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(
        monitoring.get_tool(each) for each in (monitoring.COVERAGE_ID, monitoring.DEBUGGER_ID)
    )
