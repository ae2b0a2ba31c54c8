"""The document of a sweep: a section per kind of machine, and the slots that measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tinytorch.benchmarking.suite_run import EntryOutcome
from tinytorch.benchmarking.sweep import SweepResult
from tinytorch.measure.executor import SlotReport
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import UNKNOWN, percent_text
from tinytorch.reporting.suite import result_sections, shared_notes

ABOUT = (
    "Unlike machines have tables of their own. In each, trials were measured one after the other: "
    "ratios between rows are hints, those of the scenario `comparison` are not."
)


def sweep_document(result: SweepResult) -> doc.Document:
    """Return what is stored of a sweep so far."""
    sections = list(_machines(result))
    slots = [_slots(result.slots)] if result.slots else []
    outcomes = result.outcomes
    environment = outcomes[0].record.environment if outcomes else None
    return doc.Document(
        f"Sweep {result.suite}",
        _banner(result),
        [*sections, *slots],
        [*result.notes, *shared_notes(outcomes)],
        environment,
        sweep_fields(result),
        "tinytorch-sweep.json",
        f"run {result.run}, {_count(len(outcomes), 'result')}",
        brief=[replace(each, about="") for each in sections],
    )


def sweep_fields(result: SweepResult) -> dict[str, object]:
    """Return a sweep as plain JSON data; raw values are in the records."""
    return {
        "suite": result.suite,
        "run": result.run,
        "trials": result.trials,
        "is_complete": result.is_complete,
        "failed": len(result.failed),
        "machines": {
            machine: [each.to_dict() | {"slot": each.record.details["slot"]} for each in found]
            for machine, found in result.machines.items()
        },
        "slots": [each.to_dict() for each in result.slots],
        "notes": list(result.notes),
    }


def _banner(result: SweepResult) -> doc.Banner:
    outcomes, failed = result.outcomes, len(result.failed)
    disturbed = sum(each.record.details["slot"]["is_disturbed"] for each in outcomes)
    facts = (
        ("trials", str(result.trials)),
        ("machines", str(len(result.machines))),
        ("results", str(len(outcomes))),
        ("failed", str(failed)),
        ("disturbed", str(disturbed)),
    )
    if not result.is_complete:
        return doc.Banner("Not finished: the same command goes on", ABOUT, facts, "unknown")
    if failed:
        return doc.Banner(f"{_count(failed, 'trial')} failed", ABOUT, facts, "bad")
    return doc.Banner(f"{_count(len(outcomes), 'trial')} measured", ABOUT, facts)


def _machines(result: SweepResult) -> Iterator[doc.Section]:
    for number, (machine, outcomes) in enumerate(result.machines.items(), start=1):
        found = outcomes[0].record.environment
        about = (
            f"{found.get('cpu_model') or 'unknown processor'}, {found.get('usable_cores')} cores"
        )
        missing = 0 if result.is_shared else result.trials - len(outcomes)
        left = f"; {_count(missing, 'trial')} not measured yet" if missing > 0 else ""
        yield doc.Section(
            f"machine-{number}",
            f"Machine {machine[:8]}",
            [replace(x, anchor=f"{x.anchor}-{number}") for x in _parts(outcomes)],
            f"{about}{left}.",
        )


def _parts(outcomes: Sequence[EntryOutcome]) -> list[doc.Section]:
    return list(result_sections(outcomes))


def _slots(slots: Sequence[SlotReport]) -> doc.Section:
    columns = [
        doc.Column("slot"),
        doc.Column("machine", "code"),
        doc.Column("cores", "number"),
        doc.Column("A/A floor", "number", "the smallest effect that A/A comparisons allow"),
        doc.Column("false alarms", "number", "of its A/A comparisons on arrival"),
        doc.Column("foreign load", "number", "cores that others kept busy on arrival"),
        doc.Column("not used because", wraps=True),
    ]
    rows = [
        (
            each.name,
            each.machine[:8] or UNKNOWN,
            str(len(each.cores)),
            UNKNOWN if each.floor is None else percent_text(each.floor),
            f"{each.alarms} of {each.checks}" if each.checks else UNKNOWN,
            UNKNOWN if each.foreign_load is None else f"{each.foreign_load:.2f}",
            each.obstacle,
        )
        for each in slots
    ]
    return doc.Section("slots", "Slots", (doc.Table(columns, rows),), "As they arrived this time.")


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
