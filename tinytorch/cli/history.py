"""``tinytorch history``: stored records, their trends, and change points."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_html_option,
    add_markdown_option,
    add_store_option,
    check_html_path,
    check_markdown_path,
    positive_count,
    shown_or_markdown,
    write_html,
    write_markdown,
)
from tinytorch.errors import RecordError, SettingError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinytorch.records.history import SeriesOverview, Trend
    from tinytorch.records.store import RecordStore

HOW_TO_FILL = "`tinytorch bench` and `tinytorch compare --save` add records"
DEFAULT_LIMIT = 20
SHOWN_REFUSALS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="show the trend of this series (default: list all)"
    )
    parser.add_argument(
        "--metric",
        metavar="METRIC",
        help="such as latency or 'peak memory' (default: latency, if recorded)",
    )
    parser.add_argument("--kind", metavar="KIND", help="only records of this kind")
    parser.add_argument(
        "--limit",
        type=positive_count,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of series or records (default {DEFAULT_LIMIT})",
    )
    add_store_option(parser)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--export", metavar="FILE", help="write the records as JSON lines")
    action.add_argument(
        "--import",
        dest="import_from",
        metavar="FILE",
        help="add records from JSON lines, or from the JSON of pytest-benchmark",
    )
    action.add_argument(
        "--check",
        action="store_true",
        help="verify the hash of every record; exit 1 if one is damaged",
    )
    action.add_argument("--show", metavar="HASH", help="show one record in full")
    add_html_option(parser)
    add_markdown_option(parser)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check_report(options, output)
    from tinytorch.records.store import open_store, store_path

    path = store_path(options.store)
    if not path.exists() and not options.import_from:
        if options.export or options.show:
            raise RecordError(f"there is no {path} yet; {HOW_TO_FILL}")
        output.result(_empty(options, str(path)), f"No records yet in {path}; {HOW_TO_FILL}.")
        _write_reports(options, output, ())
        return ExitCode.FINE
    with open_store(options.store) as store:
        code = _act(options, output, store)
        if store.damaged:
            skipped = _counted(len(store.damaged), "damaged record")
            output.say(f"{skipped} skipped; `tinytorch history --check` lists the reasons")
        return code


def _act(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    if options.import_from:
        return _import(options, output, store)
    if options.export:
        return _export(options, output, store)
    if options.check:
        return _check(output, store)
    if options.show:
        return _show(options, output, store)
    return _trend(options, output, store) if options.name else _list(options, output, store)


def _list(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.history import overview
    from tinytorch.reporting.history import overview_document
    from tinytorch.reporting.terminal import render

    # One more than the limit shows whether there are more.
    found = overview(store, kind=options.kind, metric=options.metric, limit=options.limit + 1)
    if not found:
        asked = [f"{word} {text!r}" for word, text in _filters(options) if text]
        words = f"No records with {' and '.join(asked)}" if asked else "No records yet"
        output.result(_empty(options, str(store.path)), f"{words} in {store.path}; {HOW_TO_FILL}.")
        _write_reports(options, output, ())
        return ExitCode.FINE
    rows, has_more = found[: options.limit], len(found) > options.limit
    payload = {"store": store.path, "series": [row.to_dict() for row in rows], "more": has_more}
    shown = [_with_usual_metric(row) for row in rows]
    usual = [trend for row in shown for trend in row.recent]
    document = overview_document(shown, has_more=has_more)
    _show_trends(options, output, payload, render(document), usual)
    return ExitCode.FINE


def _with_usual_metric(row: "SeriesOverview") -> "SeriesOverview":
    """Return the series with its default metric only."""
    from tinytorch.records.history import FIRST_CHOICE

    preferred = [each for name in FIRST_CHOICE for each in row.recent if each.metric == name]
    return replace(row, recent=(*preferred, *row.recent)[:1])


def _trend(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.history import records_named, trends, usual_metric
    from tinytorch.reporting.history import history_document
    from tinytorch.reporting.terminal import render

    records = records_named(store, options.name, kind=options.kind)
    metric = options.metric or usual_metric(records)
    found = trends(records, metric)
    if not found:
        known = sorted({each for record in records for each in record.samples})
        raise SettingError(
            f"{options.name!r} has no metric {metric!r}; there are: {', '.join(known) or 'none'}"
        )
    payload = {"store": store.path, "trends": [each.to_dict() for each in found]}
    document = history_document(found, name=options.name, limit=options.limit)
    _show_trends(options, output, payload, render(document), found)
    return ExitCode.FINE


def _show(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.reporting.history import record_document
    from tinytorch.reporting.terminal import render

    record = store.get(options.show)
    output.result(
        {"store": store.path, "record": record.to_dict()}, render(record_document(record))
    )
    return ExitCode.FINE


def _check(output: Output, store: "RecordStore") -> ExitCode:
    damaged, count = store.check(), store.count_rows()
    lines = [f"{each.hash[:12] or 'the file'}: {each.reason}" for each in damaged]
    counted = "an unknown number of records" if count is None else _counted(count, "record")
    verdict = _counted(len(damaged), "problem") if damaged else "all hashes match"
    lines.append(f"{store.path}: {counted}, {verdict}.")
    payload = {"store": store.path, "checked": count, "damaged": damaged}
    output.result(payload, "\n".join(lines))
    return ExitCode.FAILED if damaged else ExitCode.FINE


def _export(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.exchange import export_jsonl

    done = export_jsonl(store, options.export, kind=options.kind, name=options.name)
    payload = {"store": store.path, "file": options.export, "exported": done.count}
    output.result(
        {**payload, "damaged": done.damaged},
        f"{_counted(done.count, 'record')} written to {options.export}.",
    )
    return ExitCode.FAILED if done.damaged else ExitCode.FINE


def _import(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.exchange import import_file

    done = import_file(store, options.import_from)
    for each in done.refused[:SHOWN_REFUSALS]:
        output.say(f"{options.import_from}, {each.line}: {each.reason}")
    if len(done.refused) > SHOWN_REFUSALS:
        output.say(f"and {len(done.refused) - SHOWN_REFUSALS} more; --json lists all")
    added = _counted(done.added, "record")
    words = f"{added} added, {done.known} known already, {len(done.refused)} refused."
    refused = [each._asdict() for each in done.refused]
    output.result({"store": store.path, **vars(done), "refused": refused}, words)
    return ExitCode.FAILED if done.refused else ExitCode.FINE


def _check_report(options: argparse.Namespace, output: Output) -> None:
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
    others = ("export", "import_from", "check", "show")
    asked = [name for name in others if getattr(options, name)]
    for option in ("html", "markdown"):
        if asked and getattr(options, option) is not None:
            name = asked[0].partition("_")[0]
            raise SettingError(f"--{option} cannot be combined with --{name}")


def _show_trends(
    options: argparse.Namespace,
    output: Output,
    payload: dict[str, object],
    shown: "RenderableType",
    found: "Sequence[Trend]",
) -> None:
    if found:
        shown = shown_or_markdown(options.markdown, found, shown, name=options.name or "")
    output.result(payload, shown)
    _write_reports(options, output, found)


def _write_reports(options: argparse.Namespace, output: Output, found: "Sequence[Trend]") -> None:
    if found:
        name = options.name or ""
        write_markdown(options.markdown, found, output, name=name)
        write_html(options.html, found, output, is_opened=options.open, name=name)
        return
    for file in (options.html, options.markdown):
        if file is not None:
            output.say(f"{file} was not written: there is nothing to show")


def _empty(options: argparse.Namespace, path: str) -> dict[str, object]:
    """Return the JSON payload of a store without records."""
    if options.check:
        return {"store": path, "checked": 0, "damaged": []}
    if options.name:
        return {"store": path, "trends": []}
    return {"store": path, "series": [], "more": False}


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _filters(options: argparse.Namespace) -> list[tuple[str, str | None]]:
    return [("kind", options.kind), ("metric", options.metric)]
