"""Document: what a result shows, once for the terminal, Markdown and HTML.

To convert a result, write one builder in `reporting/<result>.py` and name it in `BUILDERS`::

    def sweep_document(sweep: Sweep, *, name: str = "") -> Document:
        table = table_of(
            sweep,
            number("batch", lambda each: each.batch, str),
            number("time", lambda each: each.s, seconds_text),
            column("host", lambda each: each.host, rank=2),
        )
        chart = TrendLine(sweep.times, unit="s", title="Time by batch.")
        part = Section("speed", "Speed", (chart, table), about="Median of 9.")
        banner = Banner("faster", "1.31x (1.28x to 1.35x)", tone="good")
        return Document(f"Sweep {name}", banner, (part,), sweep.notes, raw=sweep.to_dict())

`render` (terminal.py), `write` (markdown.py) and `page_from` (html/page.py) take any document and
know the classes here only. Their rules, so that a builder rarely asks which medium it is for:

- The verdict comes first everywhere. `Banner.facts` repeat tables, hence only the page has them.
- Tables leave out columns that say nothing; narrow terminals also those with the highest `rank`.
- `Folded` is for a second look: the terminal leaves it out. `Only` marks blocks for some media.
- A terminal shows `Document.brief` where there is one, and the rest with ``--verbose``.
- Charts hold numbers. A new kind is a subclass of `Chart`, and a row in `CHARTS` of terminal.py
  and html/page.py; a terminal leaves out kinds that have no row there.
- `Document.notes`, `environment` and `raw` are the appendix of the page; notes end the others.
- Text is plain text: each renderer escapes. Colours are tones, names that are code are `Code`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count, product
from string import ascii_uppercase
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError
from tinytorch.measure.environment import Environment
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.quantities import HEADROOM, UNKNOWN, Mark, without_numbers

Medium = Literal["terminal", "markdown", "html"]
Tone = Literal["", "good", "bad", "warning", "unknown", "neutral", "faint", "hot", "total"]
"""What something means, which decides its colour: `warning` is a result not to be trusted,
`unknown` one without enough evidence; `hot` and `total` are rows of a table."""


# ---------------------------------------------------------------- text


@dataclass(frozen=True)
class Code:
    """A name that is code, such as that of a function."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Words that stand out."""

    text: str


@dataclass(frozen=True)
class Link:
    """Words that lead to a section of the page by its anchor; plain text elsewhere.

    With a `page` they lead to that file beside this one.
    """

    text: str
    anchor: str = ""
    page: str = ""

    @property
    def target(self) -> str:
        return f"{self.page}#{self.anchor}" if self.anchor else self.page


Piece: TypeAlias = str | Code | Strong | Link
Words: TypeAlias = Piece | tuple[Piece, ...]


def pieces(words: Words) -> tuple[Piece, ...]:
    """Return the pieces of some words, which may be a single one."""
    return words if isinstance(words, tuple) else (words,)


def plain_text(words: Words) -> str:
    """Return the words without any markup."""
    return "".join(each if isinstance(each, str) else each.text for each in pieces(words))


@dataclass(frozen=True)
class Paragraph:
    """Words in a line of their own; a terminal leaves no blank line between two of them."""

    words: Words
    tone: Tone = ""


@dataclass(frozen=True)
class Item:
    """A line of a list with lines below it."""

    words: Words
    below: Sequence[Words] = ()


@dataclass(frozen=True)
class Bullets:
    """A list, such as reasons or notes, under a title if it has one."""

    items: Sequence[Words | Item]
    title: str = ""
    tone: Tone = ""

    @property
    def whole_items(self) -> list[Item]:
        """The items, each with what stands below it."""
        return [each if isinstance(each, Item) else Item(each) for each in self.items]


@dataclass(frozen=True)
class Facts:
    """Names with a value each, below each other."""

    pairs: Sequence[tuple[str, Words]]


@dataclass(frozen=True)
class Preformatted:
    """Text whose lines stay as they are, such as JSON."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Attachment:
    """A file inside of the page, to be saved from there; other media leave it out."""

    name: str
    text: str
    media_type: str
    about: str


# ---------------------------------------------------------------- tables

Kind = Literal["text", "code", "number", "bar"]


@dataclass(frozen=True)
class Column:
    """A column: `kind` decides how its cells are aligned and sorted, `about` explains it.

    Where a terminal is narrow, the columns with the highest `rank` go first. Cells may be cut down
    to `least` letters before that; None keeps them whole, but for those of the first column. With
    `wraps` they go on below instead.
    """

    title: str
    kind: Kind = "text"
    about: str = ""
    rank: int = 0
    least: int | None = None
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    `sort` is what rows are ordered by, where `text` is not: the number behind ``2.69 ms``. None in
    a column of numbers means unknown, which stands last in either order. `bar` is a share between
    0 and 1, `title` is shown by pointing at it. `anchor` links to a section, `page` to a file
    beside this one, `trend` is drawn as a small line instead of the text.
    """

    text: str
    sort: float | str | None = None
    bar: float | None = None
    tone: str = ""
    title: str = ""
    anchor: str = ""
    trend: Sequence[float] = ()
    page: str = ""

    @property
    def is_empty(self) -> bool:
        return self.text.strip() in ("", UNKNOWN) and self.bar is None and not self.trend


@dataclass(frozen=True)
class Row:
    """A row, in a tree where `parent` is the path of the row above it.

    Rows come in the order of a walk: a parent before its children. `is_folded` hides what is below
    until it is opened on the page; a terminal leaves it out.
    """

    cells: Sequence[Cell | str]
    path: str | None = None
    parent: str | None = None
    is_folded: bool = False
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows whose first column heads them."""

    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Cell | str]]
    caption: str = ""
    is_sortable: bool = True

    def filled(self) -> tuple[list[Column], list[Row]]:
        """Return the columns in which a row says something, and the rows with whole cells."""
        rows = [each if isinstance(each, Row) else Row(each) for each in self.rows]
        cells = [
            [each if isinstance(each, Cell) else Cell(each) for each in row.cells] for row in rows
        ]
        places = [
            place
            for place in range(len(self.columns))
            if place == 0 or not rows or any(not line[place].is_empty for line in cells)
        ]
        chosen = [
            replace(row, cells=[line[place] for place in places])
            for row, line in zip(rows, cells, strict=True)
        ]
        return [self.columns[place] for place in places], chosen


def walked(table: Table) -> tuple[list[Column], list[tuple[Row, int]]]:
    """Return the columns that say something, and the rows that are open with their depths."""
    columns, rows = table.filled()
    shown = list(open_rows(rows))
    return columns, list(zip(shown, depths(shown), strict=True))


Field: TypeAlias = tuple[Column, Callable[[Any], Cell | str]]
"""A column, and what stands in it for an item."""


def table_of(
    items: Iterable[Any],
    *fields: Field,
    caption: str = "",
    is_sortable: bool = True,
    tone: Callable[[Any], Tone] | None = None,
) -> Table:
    """Return a table with a row for each item; `tone` is that of its row."""
    cells = [(item, [show(item) for _, show in fields]) for item in items]
    rows = [line if tone is None else Row(line, tone=tone(item)) for item, line in cells]
    return Table([column for column, _ in fields], rows, caption, is_sortable)


def column(
    title: str, show: Callable[[Any], Cell | str], kind: Kind = "text", about: str = "", **rest: Any
) -> Field:
    """Return a column with what it shows of an item; `rest` are other fields of Column."""
    return Column(title, kind, about, **rest), show


def number(
    title: str,
    read: Callable[[Any], float | None],
    write: Callable[[Any], str],
    about: str = "",
    **rest: Any,
) -> Field:
    """Return a column of numbers: read from an item, written, and sorted by."""

    def show(item: Any) -> Cell:
        value = read(item)
        return Cell(UNKNOWN if value is None else write(value), value)

    return Column(title, "number", about, **rest), show


def depths(rows: Iterable[Row]) -> list[int]:
    """Return how deep each row stands in the tree; a parent comes before its children."""
    known: dict[str, int] = {}
    found = []
    for row in rows:
        depth = 0 if row.parent is None else known.get(row.parent, -1) + 1
        found.append(depth)
        if row.path is not None:
            known[row.path] = depth
    return found


def open_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Leave out what stands below a folded row, and folded rows that only head others."""
    hidden: set[str] = set()
    for row in rows:
        is_heading = row.is_folded and not any(
            each if isinstance(each, str) else not each.is_empty for each in row.cells[1:]
        )
        is_hidden = row.parent in hidden
        if row.path is not None and (is_hidden or row.is_folded):
            hidden.add(row.path)
        if not is_hidden and not is_heading:
            yield row


# ---------------------------------------------------------------- charts


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Numbers to draw, with a title and how to read it."""

    title: str = ""
    about: str = ""

    @property
    def heading(self) -> str:
        """Title and explanation in one line, as letters and Markdown have them."""
        return " ".join(filter(None, (self.title, self.about)))


@dataclass(frozen=True)
class TrendLine(Chart):
    """Values in their order, with their intervals, and a line where a level begins.

    `steps` are the indices of the first values of new levels; a level is drawn at its median,
    without `has_levels` there are none. `ends` label the first and the last value, `titles` each.
    """

    values: Sequence[float]
    unit: str = ""
    intervals: Sequence[tuple[float, float] | None] = ()
    steps: Sequence[int] = ()
    ends: tuple[str, str] = ("", "")
    titles: Sequence[str] = ()
    has_levels: bool = True

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and highest number to draw, with room around them.

        An interval reaches beyond the values by as much as these extend, at most: one wide
        interval must not flatten the rest.
        """
        low, high = min(self.values), max(self.values)
        reach = high - low
        ends = [end for each in self.intervals if each for end in each]
        inside = [end for end in ends if low - reach <= end <= high + reach]
        low, high = min([low, *inside]), max([high, *inside])
        margin = HEADROOM * (high - low) or 0.05 * abs(high) or 1.0
        return low - margin, high + margin


@dataclass(frozen=True)
class Run:
    """The values of one side, in their order; `interval` is that of their median."""

    name: str
    values: Sequence[float]
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class RunOrder(Chart):
    """Values of runs in their order, over one axis.

    `breaks` are the places where something began anew, such as a round; where there are too many
    to see they are left out. `things` are what is counted.
    """

    runs: Sequence[Run]
    unit: str = ""
    breaks: Sequence[int] = ()
    things: str = "turns"


@dataclass(frozen=True)
class Distribution(Chart):
    """How often which value was seen in each run."""

    runs: Sequence[Run]
    unit: str = ""


@dataclass(frozen=True)
class LogPlot(Chart):
    """Marks over two logarithmic axes, and the line of a law."""

    marks: Sequence[Mark]
    x_unit: str = ""
    y_unit: str = ""
    law: Callable[[float], float] | None = None


@dataclass(frozen=True)
class MarginPlot(Chart):
    """A difference with its ends, beside zero and the margin that it must not fall below."""

    value: float
    low: float
    high: float
    margin: float
    unit: str = ""
    tone: Tone = "neutral"
    sides: tuple[str, str] = ("worse", "better")


@dataclass(frozen=True)
class ParetoPoint:
    """One candidate; `tone` may also be a class of a series, such as series-2.

    `letter` is what the document calls it elsewhere, if it does.
    """

    name: str
    x: Estimate
    y: Estimate
    is_on_front: bool = False
    tone: str = "neutral"
    letter: str = ""


def letters() -> Iterator[str]:
    """Yield names for points of a picture: A to Z, then AA."""
    for count_of in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=count_of))


@dataclass(frozen=True)
class ParetoPlot(Chart):
    """Two objectives against each other, with steps along the candidates on the front.

    A front over more objectives than these two may hold points that are beaten here.
    """

    points: Sequence[ParetoPoint]
    titles: tuple[str, str]
    units: tuple[str, str] = ("", "")
    lower_is_better: tuple[bool, bool] = (True, True)
    are_log: tuple[bool, bool] = (True, False)


@dataclass(frozen=True)
class Picture:
    """An image of two colours, with words below it."""

    bright: npt.NDArray[np.bool_]
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Pictures(Chart):
    """Small images beside each other."""

    pictures: Sequence[Picture]


# ---------------------------------------------------------------- the whole


@dataclass(frozen=True)
class Folded:
    """Blocks under a title that are folded away; left out of media that are not named."""

    title: str
    blocks: Sequence[Block]
    is_open: bool = False
    media: tuple[Medium, ...] = ("markdown", "html")


@dataclass(frozen=True)
class Only:
    """Blocks for some media, where one of them truly needs something of its own."""

    media: tuple[Medium, ...]
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Beside:
    """Blocks beside each other where there is room, as on a page."""

    blocks: Sequence[Block]


def inside(block: Folded | Only | Beside, medium: Medium) -> Sequence[Block]:
    """Return what a medium shows of the blocks inside of another."""
    return block.blocks if isinstance(block, Beside) or medium in block.media else ()


@dataclass(frozen=True)
class Section:
    """A part with a title; `about` says how to read it, `anchor` names it in links.

    A section with a tone, inside of another, is a card on the page, which opens. Markdown folds
    away what `is_detail`.
    """

    anchor: str
    title: str
    blocks: Sequence[Block]
    about: str = ""
    tone: Tone = ""
    is_detail: bool = False


Block: TypeAlias = (
    "Paragraph | Bullets | Facts | Preformatted | Attachment | Table | Chart | Folded | Only"
    " | Beside | Section"
)


@dataclass(frozen=True)
class Banner:
    """What is read first: the verdict in a word, a sentence, and a few numbers that matter.

    `facts` are pairs such as ``("time", "0.61x (0.59 to 0.63)")``.
    """

    verdict: str
    sentence: str = ""
    facts: tuple[tuple[str, Words], ...] = ()
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Document:
    """Everything that a result shows, in order.

    `brief` is what a terminal shows of it unless asked for everything: the few blocks that answer
    the question, in ten to fifteen lines with verdict and notes. `notes` say what to doubt about
    all of it, and those in `minor`, at their end, how it was measured. `raw` can be saved from the
    page as `file_name`.
    """

    title: str
    banner: Banner | None = None
    blocks: Sequence[Block] = ()
    notes: Sequence[str] = ()
    environment: Environment | Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    file_name: str = "tinytorch-report.json"
    subtitle: str = ""
    brief: Sequence[Block] = ()
    minor: Collection[str] = ()


# ---------------------------------------------------------------- notes about several things


def notes_once(notes: Sequence[tuple[str, str]], *, total: int, every: str) -> list[str]:
    """Return notes, each with the name of what it is about; those that are alike are said once.

    They are alike where only their numbers differ. `every` names all of `total` things.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, note in notes:
        groups.setdefault(without_numbers(note), []).append((name, note))
    return [_said_once(group, total, every) for group in groups.values()]


def _said_once(group: Sequence[tuple[str, str]], total: int, every: str) -> str:
    (name, note), others = group[0], group[1:]
    if any(text != note for _, text in others):
        return f"{name}: {note}; the like of {len(others)} more"
    if len(group) == total > 1:
        return f"{every}: {note}"
    return f"{name} and {len(others)} more: {note}" if others else f"{name}: {note}"


# ---------------------------------------------------------------- the document of a result

BUILDERS = {
    "tinytorch.benchmarking.performance.PerformanceTable": (
        "tinytorch.reporting.benchmarking_classics:performances_document"
    ),
    "tinytorch.benchmarking.suite_run.EntryOutcome": "tinytorch.reporting.suite:suite_document",
    "tinytorch.benchmarking.sweep.SweepResult": "tinytorch.reporting.sweep:sweep_document",
    "tinytorch.comparison.comparison.Comparison": (
        "tinytorch.reporting.comparison:comparison_document"
    ),
    "tinytorch.comparison.self_check.SelfCheck": (
        "tinytorch.reporting.comparison:self_check_document"
    ),
    "tinytorch.competition.board.Board": "tinytorch.reporting.competition:board_document",
    "tinytorch.competition.judgement.Judgement": (
        "tinytorch.reporting.competition:judgement_document"
    ),
    "tinytorch.learning.checking.LabChecked": "tinytorch.reporting.learning:checked_document",
    "tinytorch.learning.exercise.Bars": "tinytorch.reporting.learning:bars_document",
    "tinytorch.learning.exercise.Growth": "tinytorch.reporting.learning:growth_document",
    "tinytorch.learning.exercise.Histogram": "tinytorch.reporting.learning:histogram_document",
    "tinytorch.learning.exercise.Roof": "tinytorch.reporting.learning:roof_document",
    "tinytorch.learning.exercise.Outcome": "tinytorch.reporting.learning:outcome_document",
    "tinytorch.learning.progress.Overview": "tinytorch.reporting.learning:overview_document",
    "tinytorch.monitoring.snapshot.Snapshot": "tinytorch.reporting.monitor:monitor_document",
    "tinytorch.profiling.profile.Profile": "tinytorch.reporting.profile:profile_document",
    "tinytorch.profiling.size_scaling.SizeScaling": "tinytorch.reporting.machine:scaling_document",
    "tinytorch.records.alarms.Confirmations": "tinytorch.reporting.gate:confirmations_document",
    "tinytorch.records.gate_result.GateResult": "tinytorch.reporting.gate:gate_document",
    "tinytorch.records.history.Trend": "tinytorch.reporting.history:history_document",
    "tinytorch.records.record.Record": "tinytorch.reporting.history:record_document",
    "tinytorch.scale.ranks_result.RanksProfile": "tinytorch.reporting.ranks:ranks_document",
    "tinytorch.transforms.compression.CompressionResult": (
        "tinytorch.reporting.transforms:compression_document"
    ),
    "tinytorch.transforms.kernel_choice.KernelReport": (
        "tinytorch.reporting.machine:kernels_document"
    ),
    "tinytorch.transforms.plan.Plan": "tinytorch.reporting.transforms:plan_document",
    "tinytorch.transforms.quantize.sensitivity.Sensitivity": (
        "tinytorch.reporting.transforms:sensitivity_document"
    ),
    "tinytorch.tuning.optimization.Optimization": (
        "tinytorch.reporting.optimization:optimization_document"
    ),
    "tinytorch.tuning.sizes.SizeAdvice": "tinytorch.reporting.advice:size_advice_document",
    "tinytorch.tuning.tour.Tour": "tinytorch.reporting.tour:tour_document",
}
"""Type of a result -> the module and the function that build its document, imported when needed."""
TOGETHER = frozenset(
    {
        "tinytorch.reporting.history:history_document",
        "tinytorch.reporting.suite:suite_document",
    }
)
"""Builders of a sequence of results, such as the trends of a history."""


def document_of(result: Any, **context: Any) -> Document:
    """Return the document of a result; `context` is what its builder takes beside it."""
    name, many = row_for(result, BUILDERS), are_many(result)
    if many and name not in TOGETHER:
        if len(result) > 1:
            raise SettingError(
                f"one report shows one {type(result[0]).__name__}, not {len(result)}"
            )
        result = result[0]
    document: Document = loaded(name)(
        (result,) if name in TOGETHER and not many else result, **context
    )
    return document


def are_many(result: Any) -> bool:
    """Tell whether these are several results, such as the outcomes of a suite."""
    return isinstance(result, Sequence) and not isinstance(result, str)


def loaded(name: str) -> Any:
    """Return what a row such as ``package.module:function`` names; its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def row_for(result: Any, table: Mapping[str, str]) -> str:
    """Return the row for the type of a result; several are of the type of the first.

    Types are written as ``package.module.Name``, so that a table imports none of them.
    """
    if are_many(result) and not result:
        raise SettingError("there is nothing to report: no results were given")
    kind = type(result[0] if are_many(result) else result)
    names = (f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)
    found = next((table[name] for name in names if name in table), None)
    if found is None:
        known = ", ".join(sorted(each.rpartition(".")[2] for each in table))
        raise SettingError(f"a {kind.__name__} has no report; there is one for: {known}")
    return found
