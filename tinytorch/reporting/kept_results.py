"""Results that were kept, as a record or as the JSON of a command, read back to be shown again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinytorch import reading
from tinytorch.benchmarking.suite_run import ENTRY_KIND, EntryOutcome
from tinytorch.codec import DataError
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import RecordError, SettingError, TinyTorchError
from tinytorch.records.record import Record
from tinytorch.records.store import RecordStore
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.records import ATTEMPT_KIND, OPTIMIZATION_KIND

COMPARISON_KIND = "comparison"
Result = Comparison | Optimization | Sequence[EntryOutcome]
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading raises where a part is missing or something else than it should be."""


@dataclass(frozen=True)
class KeptResult:
    """A comparison, an optimization or the outcomes of a suite, as it was kept.

    `context` is what reports say beside it, such as what the two sides of a comparison were.
    """

    result: Result
    kind: str
    source: str
    context: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- records


def result_in_store(store: RecordStore, hash_prefix: str) -> KeptResult:
    """Return what the record with this hash holds; of an entry of a suite, its whole run."""
    return _of_record(store.get(hash_prefix), store)


def last_result(store: RecordStore) -> KeptResult:
    """Return the newest result of a store that can be shown."""
    kinds = (OPTIMIZATION_KIND, COMPARISON_KIND, ENTRY_KIND)
    found = [
        record for kind in kinds for record in store.find(kind=kind, newest_first=True, limit=1)
    ]
    if not found:
        raise SettingError(
            f"{store.path} has no result to show; `tinytorch optimize`, `tinytorch bench` and "
            "`tinytorch compare --save` keep some"
        )
    return _of_record(max(found, key=lambda record: record.created_at), store)


def _of_record(record: Record, store: RecordStore | None) -> KeptResult:
    source = f"record {record.hash[:12]}"
    read = READERS.get(record.kind)
    if read is None and "comparison" in record.details:
        read = _comparison
    if read is None:
        raise SettingError(
            f"{source} is of the kind {record.kind!r}, which has no report; "
            f"`tinytorch history --show {record.hash[:12]}` shows it"
        )
    try:
        result, context = read(record, store)
    except DAMAGE as error:
        raise _damaged(source, error) from error
    return KeptResult(result, record.kind, source, context)


def _optimization(record: Record, store: RecordStore | None) -> tuple[Result, dict[str, Any]]:
    return Optimization.from_dict(record.details), {}


def _comparison(record: Record, store: RecordStore | None) -> tuple[Result, dict[str, Any]]:
    about = [record.name, f"measured at {record.created_at[:16].replace('T', ' ')} UTC"]
    return Comparison.from_dict(record.details["comparison"]), {"about": about}


def _attempt(record: Record, store: RecordStore | None) -> tuple[Result, dict[str, Any]]:
    attempt = Attempt.from_dict(record.details)
    if attempt.comparison is None:
        raise SettingError(
            f"record {record.hash[:12]}: {record.name} was never timed, so there is nothing to "
            f"show; {attempt.outcome}: {attempt.reason}"
        )
    about = [record.name, f"{attempt.outcome}; {attempt.reason}"]
    return attempt.comparison, {"about": about}


def _suite_run(record: Record, store: RecordStore | None) -> tuple[Result, dict[str, Any]]:
    whole = [record]
    if store is not None and record.run:
        whole = store.find(kind=ENTRY_KIND, run=record.run)
    context = {"name": record.details["suite"], "planned": len(whole), "run": record.run}
    return tuple(EntryOutcome(each, is_from_before=True) for each in whole), context


READERS: dict[str, Callable[[Record, RecordStore | None], tuple[Result, dict[str, Any]]]] = {
    OPTIMIZATION_KIND: _optimization,
    COMPARISON_KIND: _comparison,
    ATTEMPT_KIND: _attempt,
    ENTRY_KIND: _suite_run,
}
"""Kind of a record -> what gives the result in it, and what to say beside it."""


# ---------------------------------------------------------------- files


def result_in_file(path: Path) -> KeptResult:
    """Return the result in a file that a command wrote with ``--json``, or that is a record."""
    try:
        text = reading.read_text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{path} cannot be read: {reason}") from error
    return result_in_text(text, str(path))


def result_in_text(text: str, source: str) -> KeptResult:
    """Return the result in what a command printed with ``--json``; `source` is named in errors."""
    try:
        fields = reading.parse_json(text)
    except ValueError as error:
        raise RecordError(f"{source} is no JSON, or not all of it: {error}") from error
    if not isinstance(fields, dict):
        raise SettingError(f"{source} holds a {type(fields).__name__}, not a result of a command")
    if "kind" in fields and "samples" in fields:
        return _of_record(Record.from_dict(fields), None)
    command = fields.get("command")
    read = COMMANDS.get(str(command))
    if read is None:
        raise SettingError(_no_report(source, command))
    try:
        result, context = read(fields)
    except DAMAGE as error:
        raise _damaged(source, error) from error
    return KeptResult(result, str(command), source, context)


def _compared(fields: Mapping[str, Any]) -> tuple[Result, dict[str, Any]]:
    if "selfcheck" in fields:
        raise SettingError("a self-check has no report; its terminal output is all there is")
    sides = [f"{side}: {fields[side]['target']}" for side in ("baseline", "candidate")]
    return Comparison.from_dict(fields["comparison"]), {"about": sides}


def _shown_again(fields: Mapping[str, Any]) -> tuple[Result, dict[str, Any]]:
    context = dict(fields.get("context", {}))
    if "optimization" in fields:
        return Optimization.from_dict(fields["optimization"]), context
    return Comparison.from_dict(fields["comparison"]), context


COMMANDS: dict[str, Callable[[Mapping[str, Any]], tuple[Result, dict[str, Any]]]] = {
    "optimize": lambda fields: (Optimization.from_dict(fields["optimization"]), {}),
    "compare": _compared,
    "report": _shown_again,
}
"""Command that wrote a JSON file -> what gives the result in it."""
INSTEAD = {
    "profile": "a profile in JSON is a summary; `tinytorch profile TARGET --html FILE` writes the "
    "report while everything is there",
    "bench": "a suite's numbers are in its records; `tinytorch report HASH` shows the run of one",
    "history": "trends are drawn from records; `tinytorch history --html FILE` does that",
}
"""Command whose JSON has no report -> what to do instead."""


def _no_report(source: str, command: object) -> str:
    if str(command) in INSTEAD:
        return f"{source}: {INSTEAD[str(command)]}"
    if command is None:
        return (
            f"{source} was written by no command of tinytorch; give what `tinytorch optimize` or "
            "`tinytorch compare` printed with --json"
        )
    known = ", ".join(COMMANDS)
    return f"{source} was written by {command!r}, which has no report; there are those of {known}"


def _damaged(source: str, error: Exception) -> TinyTorchError:
    if isinstance(error, TinyTorchError) and not isinstance(error, DataError):
        return error
    missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return RecordError(f"{source} is damaged, or of another version of tinytorch: {missing}")
