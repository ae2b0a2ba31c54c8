"""A history as static pages: a list of all series and a page for each, made anew where it grew."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tinytorch import __version__, reading
from tinytorch.errors import RecordError
from tinytorch.measure.ceilings import Progress
from tinytorch.records.history import FIRST_CHOICE, PARTS, Trend, trends
from tinytorch.records.record import SeriesKey
from tinytorch.records.store import RecordStore, SeriesSummary
from tinytorch.reporting import document as doc
from tinytorch.reporting.history import SERIES, UNLIKE, history_document, machine_cell
from tinytorch.reporting.html.page import page_from, render_page
from tinytorch.reporting.quantities import UNKNOWN, date_text, value_text

INDEX, STATE, FOLDER = "index.html", "state.json", "series"
LAYOUT = 1
"""The version of the pages: all are made anew when it, or tinytorch, has changed."""
PER_PAGE = 500
"""Series that a page of the list has."""
NEWEST = 200
"""Records of a series that its page shows, the newest; the list says how many there are."""
SPARKS = 40


@dataclass(frozen=True)
class Written:
    """How many series there are, how many of their pages were made, and how many were removed."""

    series: int
    made: int
    removed: int


def write_pages(store: RecordStore, folder: Path, *, progress: Progress | None = None) -> Written:
    """Write the pages of a store into a folder, only those of series that have changed.

    Any web server can serve the folder, and a browser opens `index.html` without one. Each file is
    replaced at once. What is not ours in the folder is left alone.
    """
    known = _read_state(folder)
    rows: dict[str, dict[str, Any]] = {}
    made = 0
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for summary in store.series():
        if summary.key.kind in PARTS:
            continue
        page = page_name(summary.key)
        row, stamp = known.get(page), _stamp(summary)
        if row is None or row.get("stamp") != stamp or not (folder / page).is_file():
            row = _write_series(store, summary, folder / page) | {"stamp": stamp}
            made += 1
        rows[page] = row
        if progress:
            progress.advance()
    gone = [page for page in known if page not in rows]
    for page in gone:
        (folder / page).unlink(missing_ok=True)
    _write_lists(rows, folder)
    state = {"layout": LAYOUT, "tinytorch": __version__, "series": rows}
    _write(folder / STATE, json.dumps(state))
    return Written(len(rows), made, len(gone))


def page_name(key: SeriesKey) -> str:
    """Return the file of a series: by a hash, since a name may hold what a file's may not."""
    digest = hashlib.sha256(json.dumps(key).encode("ascii")).hexdigest()
    return f"{FOLDER}/{digest[:20]}.html"


def _stamp(summary: SeriesSummary) -> list[Any]:
    return [summary.count, summary.first, summary.last]


def _read_state(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the last run knew; nothing where it was of another version, or is no state."""
    try:
        state = reading.read_json(folder / STATE)
        if (state["layout"], state["tinytorch"]) != (LAYOUT, __version__):
            return {}
        rows = dict(state["series"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    # Only names that we give: others would lead out of the folder.
    return {page: row for page, row in rows.items() if _is_page(page) and isinstance(row, dict)}


def _is_page(name: str) -> bool:
    stem = name.removeprefix(f"{FOLDER}/").removesuffix(".html")
    return name == f"{FOLDER}/{stem}.html" and len(stem) == 20 and stem.isalnum()


def _write(path: Path, text: str) -> None:
    """Replace a file at once. It is not synced to the disk: a page can be made again."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written ({error.strerror or error}); name another folder"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


# ---------------------------------------------------------------- one series


def _write_series(store: RecordStore, summary: SeriesSummary, path: Path) -> dict[str, Any]:
    """Write the page of a series, and return its row of the list."""
    key = summary.key
    records = store.find(**key._asdict(), limit=NEWEST, newest_first=True)
    found = sorted(trends(reversed(records)), key=_preference)
    row: dict[str, Any] = {"key": list(key), "count": summary.count, "last": summary.last}
    if found:
        document = history_document(found, name=key.name, limit=NEWEST, index=f"../{INDEX}")
        row |= _row_of(found[0])
    else:
        words = "None of its records can be read, or none has a metric."
        document = doc.Document(f"History of {key.name}", None, (doc.Paragraph(words),))
    _write(path, render_page(page_from(document)))
    return row


def _preference(trend: Trend) -> int:
    known = FIRST_CHOICE.index(trend.metric) if trend.metric in FIRST_CHOICE else len(FIRST_CHOICE)
    return known


def _row_of(trend: Trend) -> dict[str, Any]:
    return {
        "metric": trend.metric,
        "unit": trend.unit,
        "value": trend.values[-1],
        "change": trend.last_change,
        "levels": len(trend.change_points),
        "recent": list(trend.values[-SPARKS:]),
    }


# ---------------------------------------------------------------- the list


def _write_lists(rows: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write the list of all series, the newest first, in pages; remove pages it had before."""
    parts = list(_parts(list(rows.items()))) or [[]]
    names = [INDEX, *(f"series-{number}.html" for number in range(2, len(parts) + 1))]
    for place, (name, part) in enumerate(zip(names, parts, strict=True)):
        document = _list_document(part, names, place, len(rows), rows.values())
        _write(folder / name, render_page(page_from(document)))
    for old in folder.glob("series-*.html"):
        if old.name not in names and old.stem.removeprefix("series-").isdecimal():
            old.unlink(missing_ok=True)


def _parts(rows: list[Any]) -> Iterator[list[Any]]:
    rest = iter(rows)
    while part := list(islice(rest, PER_PAGE)):
        yield part


def _list_document(
    part: Sequence[tuple[str, Mapping[str, Any]]],
    names: Sequence[str],
    place: int,
    total: int,
    rows: Iterable[Mapping[str, Any]],
) -> doc.Document:
    every = list(rows)
    records = sum(row["count"] for row in every)
    table = doc.Table(SERIES, [_list_row(page, row) for page, row in part])
    links: list[doc.Piece] = []
    for number, name in enumerate(names):
        link = (
            doc.Strong(str(number + 1)) if number == place else doc.Link(str(number + 1), page=name)
        )
        links += [" ", link]
    paging = [doc.Paragraph(("Pages:", *links))] if len(names) > 1 else []
    newest = max((row["last"] for row in every), default="")
    facts = (("series", str(total)), ("records", str(records)))
    sentence = f"The newest record is of {date_text(newest)}." if newest else "No records yet."
    return doc.Document(
        "Performance history",
        doc.Banner("Performance history", sentence, facts),
        (doc.Section("series", "Series", (*paging, table, *paging), f"{total} series {UNLIKE}"),),
    )


def _list_row(page: str, row: Mapping[str, Any]) -> list[doc.Cell | str]:
    kind, name, machine, _ = row["key"]
    count, value, change = row["count"], row.get("value"), row.get("change")
    recent = row.get("recent", ())
    return [
        doc.Cell(name, name, page=page),
        kind,
        row.get("metric", UNKNOWN),
        doc.Cell(str(count), count),
        doc.Cell(UNKNOWN if value is None else value_text(value, row["unit"]), value),
        doc.Cell("" if change is None else f"{change:+.1%}", change),
        doc.Cell("", change, trend=recent if len(recent) > 1 else ()),
        doc.Cell(str(row.get("levels", "")), row.get("levels")),
        date_text(row["last"]),
        machine_cell(machine),
    ]
