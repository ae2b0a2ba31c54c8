"""``tinytorch history``: stored records, their trends, change points, and those of a team."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_report_options,
    add_store_option,
    check_html_path,
    check_markdown_path,
    open_page,
    positive_count,
    show_result,
    write_reports,
)
from tinytorch.errors import RecordError, SettingError

if TYPE_CHECKING:
    from tinytorch.records.history import SeriesOverview, Trend
    from tinytorch.records.store import RecordStore
    from tinytorch.reporting.document import Document

HOW_TO_FILL = "`tinytorch bench` and `tinytorch compare --save` add records"
DEFAULT_LIMIT = 20
PUSH, PULL = "push", "pull"
SHOWN_REFUSALS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="show the trend of this series (default: list all); "
        "push --to PLACE and pull --from PLACE copy records",
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
    _add_sharing(parser)
    about = "a self-contained HTML report; a folder gets pages of all series"
    add_report_options(parser, about=about)


def _add_sharing(parser: argparse.ArgumentParser) -> None:
    shared = parser.add_argument_group("a history that a team shares")
    places = "postgresql://..., a folder, mlflow:URI, or the file of a store"
    shared.add_argument("--to", metavar="PLACE", help=f"where push copies records: {places}")
    shared.add_argument("--from", dest="source", metavar="PLACE", help="where pull takes them")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check_report(options, output)
    options.store = _own_copy(options.store, output)
    if options.to or options.source or options.name in (PUSH, PULL):
        return _share(options, output)
    from tinytorch.records.location import store_path
    from tinytorch.records.store import open_store

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
    if _is_folder(options.html):
        return _write_pages(options, output, store)
    return _trend(options, output, store) if options.name else _list(options, output, store)


def _list(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.history import overview
    from tinytorch.reporting.history import overview_document

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
    _show_trends(options, output, payload, document, usual)
    return ExitCode.FINE


def _with_usual_metric(row: "SeriesOverview") -> "SeriesOverview":
    """Return the series with its default metric only."""
    from tinytorch.records.history import FIRST_CHOICE

    preferred = [each for name in FIRST_CHOICE for each in row.recent if each.metric == name]
    return replace(row, recent=(*preferred, *row.recent)[:1])


def _trend(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.records.history import records_named, trends, usual_metric
    from tinytorch.reporting.history import history_document

    records = records_named(store, options.name, kind=options.kind)
    metric = options.metric or usual_metric(records)
    found = trends(records, metric)
    if not found:
        known = sorted({each for record in records for each in record.samples})
        raise SettingError(
            f"{options.name!r} has no metric {metric!r}; there are: {', '.join(known) or 'none'}"
        )
    payload: dict[str, object] = {
        "store": store.path,
        "trends": [each.to_dict() for each in found],
    }
    document = history_document(found, name=options.name, limit=options.limit)
    _show_trends(options, output, payload, document, found)
    return ExitCode.FINE


def _show(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.reporting.history import record_document

    record = store.get(options.show)
    payload = {"store": store.path, "record": record.to_dict()}
    output.show(payload, record_document(record))
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


def _share(options: argparse.Namespace, output: Output) -> ExitCode:
    """Copy records to a place or from one."""
    from tinytorch.records.location import store_path
    from tinytorch.records.sharing import copy_records, opened_place
    from tinytorch.records.store import open_store
    from tinytorch.reporting.html.page import report_html

    place = options.to if options.name == PUSH else options.source
    if options.name not in (PUSH, PULL) or not place or (options.to and options.source):
        raise SettingError("copy records with `history push --to PLACE` or `pull --from PLACE`")
    own = store_path(options.store)
    if options.name == PUSH and not own.exists():
        raise RecordError(f"there is no {own} yet; {HOW_TO_FILL}")
    with open_store(options.store) as store, opened_place(place, report=report_html) as other:
        source, target = (store, other) if options.name == PUSH else (other, store)
        with output.progress(f"history {options.name}", len(source.hashes())) as progress:
            done = copy_records(source, target, progress=progress)
        words = f"{_counted(done.added, 'record')} added to {target.path}, {done.known} known."
        if done.damaged:
            output.say(f"{_counted(done.damaged, 'damaged record')} of {source.path} skipped")
        payload = {"store": store.path, options.name: other.path, **vars(done)}
        output.result(payload, words)
    return ExitCode.FAILED if done.damaged else ExitCode.FINE


def _own_copy(store: str | None, output: Output) -> str | os.PathLike[str] | None:
    """Return a store that has what is in a shared folder, or the one that was named."""
    from tinytorch.records.location import store_path
    from tinytorch.records.sharing import copy_of_folder

    path = store_path(store)
    if not isinstance(path, Path) or not path.is_dir():
        return store
    with output.progress(f"reading {path}") as progress:
        return copy_of_folder(path, progress=progress)


def _is_folder(path: Path | None) -> bool:
    """Return whether --html names a folder for many pages: one that is there, or no .html."""
    return path is not None and (path.is_dir() or not path.suffix)


def _write_pages(options: argparse.Namespace, output: Output, store: "RecordStore") -> ExitCode:
    from tinytorch.reporting.team_pages import INDEX, write_pages

    with output.progress("pages", len(store.series())) as progress:
        done = write_pages(store, options.html, progress=progress)
    index = options.html / INDEX
    words = f"{index}: {done.series} series, {done.made} pages made, {done.removed} removed."
    output.result({"store": store.path, "index": index, **vars(done)}, words)
    open_page(index, output, is_wanted=options.open)
    return ExitCode.FINE


def _check_report(options: argparse.Namespace, output: Output) -> None:
    if _is_folder(options.html):
        if options.name or options.kind or options.metric or options.markdown:
            raise SettingError("a folder gets the pages of all series; give only --store with it")
    else:
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
    document: "Document",
    found: "Sequence[Trend]",
) -> None:
    if found:
        show_result(options, output, payload, found, document=document, name=options.name or "")
    else:
        output.show(payload, document)
    _write_reports(options, output, found)


def _write_reports(options: argparse.Namespace, output: Output, found: "Sequence[Trend]") -> None:
    if found:
        write_reports(options, output, found, name=options.name or "")
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
