"""The document of what a monitor has seen: latency by size, layers, what changed, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tinytorch.monitoring.changes import Change
from tinytorch.monitoring.histogram import Distribution
from tinytorch.monitoring.production import advise_service
from tinytorch.monitoring.snapshot import Snapshot
from tinytorch.reporting import document as doc
from tinytorch.reporting.advice import advice_section, suggestion_lines
from tinytorch.reporting.layers import share_cell
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.tuning.advice import Advice

BRIEF = 5
QUANTILES = (0.5, 0.9, 0.99, 0.999)
TONES: dict[str, doc.Tone] = {
    "layer": "bad",
    "model": "bad",
    "memory": "bad",
    "machine": "warning",
    "inputs": "warning",
}


def monitor_document(snapshot: Snapshot, *, advice: Sequence[Advice] | None = None) -> doc.Document:
    """Return latency, layers, changes and suggestions of a service."""
    advice = advise_service(snapshot) if advice is None else advice
    facts = tuple(_facts(snapshot))
    sections = [
        _changes_section(snapshot),
        doc.Section("sizes", "Latency by input size", (_size_table(snapshot),)),
        _requests_section(snapshot),
        _layers_section(snapshot) if snapshot.sampled else None,
        advice_section(advice),
        _minutes_section(snapshot) if len(snapshot.minutes) > 1 else None,
    ]
    shown = doc.Only(("terminal", "markdown"), (doc.Facts(facts),))
    return doc.Document(
        f"Monitor of {snapshot.name}",
        _banner(snapshot, facts),
        (shown, *(each for each in sections if each is not None)),
        [str(note) for note in snapshot.notes],
        raw=snapshot.to_dict(),
        file_name="monitor.json",
        subtitle=f"{snapshot.framework}, {snapshot.device}, {_processes(snapshot)}",
        brief=(
            doc.Facts(facts),
            _size_table(snapshot),
            *([_layer_table(snapshot, BRIEF)] if snapshot.sampled else ()),
            doc.Facts([*suggestion_lines(advice)]),
        ),
    )


def _processes(snapshot: Snapshot) -> str:
    return f"{snapshot.processes} process{'es' if snapshot.processes > 1 else ''}"


def _banner(snapshot: Snapshot, facts: Sequence[tuple[str, doc.Words]]) -> doc.Banner:
    changes = snapshot.active
    if changes:
        first = min(changes, key=lambda each: (each.kind not in ("layer", "memory"), each.since))
        more = f" {len(changes) - 1} more below." if len(changes) > 1 else ""
        sentence = f"Since {moment_text(first.since)}.{more}"
        return doc.Banner(first.words, sentence, tuple(facts), TONES[first.kind])
    middle = seconds_text(snapshot.latency.quantile(0.5))
    if snapshot.reference is None:
        learned = f"{snapshot.learned_minutes} of {snapshot.learning_minutes} minutes"
        return doc.Banner(f"{middle} per call", f"Learning: {learned}.", tuple(facts))
    sentence = "Nothing has changed against the reference."
    return doc.Banner(f"{middle} per call", sentence, tuple(facts), "good")


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    latency, requests = snapshot.latency, snapshot.requests
    yield "latency", f"{_spread(latency)}; n={count_text(latency.n)}"
    if requests.n:
        yield "requests", f"{_spread(requests)}; n={count_text(requests.n)}"
        yield "throughput", rate_text(requests.n / snapshot.seconds, "requests/s")
        waiting = snapshot.queued.sum_s / requests.sum_s if requests.sum_s else 0.0
        yield "waiting", f"{percent_text(waiting)} of a request is before the model"
        yield "at once", f"{snapshot.in_flight} requests now, at most {snapshot.most_in_flight}"
    memory = bytes_text(snapshot.memory_bytes)
    yield "memory", f"{memory} resident, at most {bytes_text(snapshot.most_memory_bytes)}"
    if snapshot.errors:
        yield "errors", f"{snapshot.errors:,} calls of the model raised"


def _spread(found: Distribution) -> str:
    middle, tail = (seconds_text(found.quantile(share)) for share in (0.5, 0.99))
    return f"median {middle}, p99 {tail}"


def _quantiles(found: Distribution) -> list[doc.Cell]:
    values = [found.quantile(share) for share in QUANTILES]
    return [doc.Cell(seconds_text(value), value) for value in values]


def _quantile_columns() -> list[doc.Column]:
    names = ("median", "p90", "p99", "p99.9")
    return [doc.Column(name, "number", rank=at) for at, name in enumerate(names)]


def _size_table(snapshot: Snapshot) -> doc.Table:
    columns = [
        doc.Column("input", "code", "the shape that is seen most among those of its size"),
        doc.Column("calls", "number"),
        doc.Column("of calls", "number", rank=1),
        doc.Column("of time", "bar"),
        *_quantile_columns(),
    ]
    calls, spent = max(1, snapshot.latency.n), snapshot.latency.sum_s or 1.0
    rows: list[Sequence[doc.Cell | str]] = [
        (
            each.name,
            doc.Cell(count_text(each.latency.n), each.latency.n),
            doc.Cell(percent_text(each.latency.n / calls), each.latency.n),
            share_cell(each.latency.sum_s / spent),
            *_quantiles(each.latency),
        )
        for each in snapshot.sizes
    ]
    return doc.Table(columns, rows)


def _requests_section(snapshot: Snapshot) -> doc.Section | None:
    if not snapshot.requests.n:
        return None
    columns = [doc.Column("part"), doc.Column("n", "number"), *_quantile_columns()]
    rows: list[Sequence[doc.Cell | str]] = [
        (name, doc.Cell(count_text(found.n), found.n), *_quantiles(found))
        for name, found in (
            ("whole request", snapshot.requests),
            ("before the model", snapshot.queued),
        )
    ]
    return doc.Section("requests", "Requests", (doc.Table(columns, rows),))


def _layer_table(snapshot: Snapshot, most: int | None = None) -> doc.Table:
    columns = [
        doc.Column("layer", "code", least=40),
        doc.Column("kind", rank=2),
        doc.Column("share", "bar"),
        doc.Column("self", "number", "per sampled call"),
        doc.Column("2x faster", "number", "speedup of the call if it took half the time", rank=1),
    ]
    from tinytorch.measure.roofline import amdahl

    total = snapshot.sampled_s or 1.0
    slowest = sorted(snapshot.layers, key=lambda each: -each.self_s)[:most]
    rows = [
        (
            each.path,
            each.kind,
            share_cell(min(1.0, each.self_s / total)),
            doc.Cell(seconds_text(each.self_s / snapshot.sampled), each.self_s),
            factor_text(amdahl(min(1.0, each.self_s / total), 2.0)),
        )
        for each in slowest
    ]
    return doc.Table(columns, rows)


def _layers_section(snapshot: Snapshot) -> doc.Section:
    about = f"Own times in {snapshot.sampled:,} sampled calls, drawn at random."
    return doc.Section("layers", "Layers", (_layer_table(snapshot),), about, is_detail=True)


def moment_text(moment: float) -> str:
    """Return a moment to the minute, in UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def _changes_section(snapshot: Snapshot) -> doc.Section:
    about = (
        "Against a frozen reference, one false alarm in 30 days at most, as long as a minute is "
        "slow by chance no more often than one in ten, whatever came before."
    )
    if not snapshot.changes:
        words = "None." if snapshot.reference is not None else "The reference is still learned."
        return doc.Section("changes", "Changes", (doc.Paragraph(words, "faint"),), about)
    columns = [
        doc.Column("what", wraps=True),
        doc.Column("since"),
        doc.Column("noticed after", "number", rank=1),
        doc.Column("ended", rank=2),
    ]
    return doc.Section(
        "changes", "Changes", (doc.Table(columns, [_change(x) for x in snapshot.changes]),), about
    )


def _change(change: Change) -> doc.Row:
    delay = change.noticed - change.since
    ended = moment_text(change.ended) if change.ended is not None else UNKNOWN
    cells = (change.words, moment_text(change.since), doc.Cell(seconds_text(delay), delay), ended)
    return doc.Row(cells, tone=TONES[change.kind] if change.ended is None else "faint")


def _minutes_section(snapshot: Snapshot) -> doc.Section:
    minutes = [each for each in snapshot.minutes if each.p99_s is not None]
    ends = (moment_text(minutes[0].ended), moment_text(minutes[-1].ended)) if minutes else ("", "")
    charts = []
    for title, unit, values in (
        ("p99 of a minute's calls", "s", [each.p99_s or 0.0 for each in minutes]),
        ("Resident memory", "B", [each.memory_bytes for each in minutes]),
    ):
        if len(values) > 1:
            line = doc.TrendLine(values, unit, ends=ends, has_levels=False, title=title)
            charts.append(line)
    return doc.Section("minutes", "The last hours", charts)
