"""Documents as pages: a banner with the verdict, sections, an appendix; everything in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from tinytorch import __version__
from tinytorch.measure.environment import Environment
from tinytorch.reporting import document as doc
from tinytorch.reporting.document import Section as DocumentSection
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.html.flame import FlameGraph, flame_graph
from tinytorch.reporting.html.forest import forest_picture, margin_picture
from tinytorch.reporting.html.markup import Markup, element, joined, listed, packed, table
from tinytorch.reporting.html.pareto import log_picture, pareto_picture
from tinytorch.reporting.html.plot import beside, figure, pictures_drawing
from tinytorch.reporting.html.roofline import roofline_chart
from tinytorch.reporting.html.runs import (
    overlaid_distributions,
    run_order,
    small_trend,
    trend_picture,
)
from tinytorch.reporting.html.timeline import (
    StackedLevels,
    Timeline,
    levels_chart,
    timeline_chart,
)
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, percent_text
from tinytorch.reporting.roofline import Roofline

STYLES = ("style.css", "plot.css")
LONGEST_FACT = 40
"""Letters of a fact from which on it is a sentence, which takes more room."""
MANY_COLUMNS = 9
"""From these on, headings of tables wrap and gaps are small."""
COMMON_SCRIPTS = ("sorting.js",)
"""Scripts that every page has; a section names those that it needs beside them."""


@dataclass(frozen=True)
class Section:
    """One part of a page; `about` says how to read it, `anchor` names it in links."""

    anchor: str
    title: str
    body: Markup
    about: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """Everything that one file shows. `raw` can be saved from it as JSON."""

    title: str
    banner: doc.Banner
    sections: tuple[Section, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    subtitle: str = ""


def render_page(page: Page) -> str:
    """Write the file. Nothing in it may be fetched from elsewhere; its policy says so."""
    names = dict.fromkeys((*COMMON_SCRIPTS, *(s for each in page.sections for s in each.scripts)))
    scripts = [_asset(name) for name in names]
    style = "\n".join(_asset(name) for name in STYLES)
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("meta", name="generator", content=f"tinytorch {__version__}"),
            element("title", page.title),
            element("style", Markup(style)),
        ],
        Markup("\n"),
    )
    sections = element("main", *(_section(each) for each in page.sections), id="content")
    body = joined(
        [
            element("a", "Skip to the content", href="#content", class_="skip"),
            _masthead(page),
            _banner(page.banner),
            element("div", _contents(page), sections, class_="layout"),
            element("footer", f"Made with tinytorch {__version__}. Nothing is fetched to show it."),
            packed(page.raw, "raw") if page.raw else Markup(""),
            *(element("script", Markup(each)) for each in scripts),
        ],
        Markup("\n"),
    )
    document = element(
        "html", element("head", head), Markup("\n"), element("body", body), lang="en"
    )
    # Half of a pair of letters, as names of files may hold, has no form in the file.
    return f"<!doctype html>\n{document}\n".encode("utf-8", "replace").decode("utf-8")


def _masthead(page: Page) -> Markup:
    return element(
        "div",
        element("p", page.title, class_="title"),
        element("p", page.subtitle, class_="subtitle") if page.subtitle else Markup(""),
        element("button", "Dark", type="button", id="theme"),
        class_="masthead",
    )


def _banner(banner: doc.Banner) -> Markup:
    facts = [element("div", element("dt", k), element("dd", _words(v))) for k, v in banner.facts]
    are_long = any(isinstance(v, str) and len(v) > LONGEST_FACT for _, v in banner.facts)
    return element(
        "header",
        element("h1", banner.verdict),
        element("p", banner.sentence, class_="sentence") if banner.sentence else Markup(""),
        element("dl", *facts, class_="long" if are_long else None) if facts else Markup(""),
        class_=f"banner {banner.tone}",
    )


def _contents(page: Page) -> Markup:
    links = [element("a", s.title, href=f"#{s.anchor}") for s in page.sections if s.title]
    if len(links) < 2:
        return Markup("")
    listed = element("ul", *(element("li", link) for link in links))
    return element("nav", listed, class_="contents", aria_label="Contents")


def _section(section: Section) -> Markup:
    heading = f"{section.anchor}-title"
    return element(
        "section",
        element("h2", section.title, id=heading) if section.title else Markup(""),
        element("p", section.about, class_="about") if section.about else Markup(""),
        section.body,
        id=section.anchor,
        aria_labelledby=heading if section.title else None,
    )


@cache
def _asset(name: str) -> str:
    """Read a style or script; it must not end the element that it stands in."""
    text = files("tinytorch.reporting.html").joinpath(name).read_text("utf-8")
    breaks_out = "</s" in text.lower() or "<!--" in text
    assert not breaks_out, f"{name} would end its own element"
    return text


def _policy(scripts: list[str]) -> str:
    """Allow the scripts by what they say, and nothing from elsewhere.

    Scripts may not make markup out of text either (trusted types): a name stays a name.
    """
    digests = " ".join(f"'{_digest(each)}'" for each in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


# ---------------------------------------------------------------- from a document to its page


def page_from(document: doc.Document) -> Page:
    """Return the page of a document: a section for each of its own, and the appendix.

    Blocks outside of a section stand together in one that has no entry in the contents.
    """
    parts: list[Section] = []
    loose: list[doc.Block] = []
    for block in document.blocks:
        if not isinstance(block, DocumentSection):
            loose.append(block)
            continue
        parts += _loose_section(loose, len(parts))
        loose = []
        section = section_from(block)
        parts += [section] if section.body else []  # some have blocks for other media only
    parts += _loose_section(loose, len(parts))
    if document.notes or document.environment or document.raw:
        parts.append(
            appendix(
                document.environment, document.notes, document.raw, file_name=document.file_name
            )
        )
    banner = document.banner or doc.Banner(document.title)
    return Page(document.title, banner, tuple(parts), document.raw, document.subtitle)


def section_from(section: DocumentSection) -> Section:
    """Return the part of a page for a section of a document."""
    body, scripts = _blocks(section.blocks), _scripts(section.blocks)
    return Section(section.anchor, section.title, body, section.about, scripts)


def _loose_section(blocks: Sequence[doc.Block], place: int) -> list[Section]:
    body = _blocks(blocks)
    return [Section(f"part-{place + 1}", "", body, scripts=_scripts(blocks))] if body else []


def _scripts(blocks: Sequence[doc.Block]) -> tuple[str, ...]:
    """Return the scripts of all charts in some blocks, also in those inside of others."""
    names: list[str] = []
    for block in blocks:
        if isinstance(block, doc.Folded | doc.Only | doc.Beside | DocumentSection):
            names += _scripts(block.blocks)
        names += SCRIPTS.get(type(block), ())
    return tuple(dict.fromkeys(names))


def _blocks(blocks: Sequence[doc.Block]) -> Markup:
    return joined(map(_block, blocks))


def _block(block: doc.Block) -> Markup:
    return BLOCKS[doc.Chart if isinstance(block, doc.Chart) else type(block)](block)


def _paragraph(block: doc.Paragraph) -> Markup:
    return element("p", _words(block.words), class_=block.tone or None)


def _bullets(block: doc.Bullets) -> Markup:
    if not block.items:
        return Markup("")
    drawn = element("ul", *map(_item, block.whole_items), class_="notes")
    return joined([element("h3", block.title), drawn]) if block.title else drawn


def _item(item: doc.Item) -> Markup:
    below = [element("li", _words(each)) for each in item.below]
    return element("li", _words(item.words), element("ul", *below) if below else Markup(""))


def _facts(block: doc.Facts) -> Markup:
    pairs = [
        element("div", element("dt", name), element("dd", _words(words)))
        for name, words in block.pairs
    ]
    return element("dl", *pairs, class_="facts")


def _preformatted(block: doc.Preformatted) -> Markup:
    title = element("h3", block.title) if block.title else Markup("")
    return joined([title, element("pre", block.text)])


def _attachment(block: doc.Attachment) -> Markup:
    letters = base64.b64encode(block.text.encode("utf-8", "replace")).decode("ascii")
    href = f"data:{block.media_type};charset=utf-8;base64,{letters}"
    link = element("a", block.name, href=href, download=block.name)
    return element("p", link, f" ({block.about})")


def _table(block: doc.Table) -> Markup:
    columns, rows = block.filled()
    drawn = [replace(row, cells=[_cell(each) for each in row.cells]) for row in rows]
    dense = "dense" if len(columns) >= MANY_COLUMNS else ""
    return table(columns, drawn, caption=block.caption, sortable=block.is_sortable, class_=dense)


def _cell(cell: doc.Cell | str) -> doc.Cell:
    """Return a cell whose link or small line is markup."""
    if isinstance(cell, str):
        return doc.Cell(cell)
    text = cell.text
    if cell.trend:
        text = small_trend(cell.trend, label=f"{len(cell.trend)} values")
    elif cell.anchor or cell.page:
        target = doc.Link(cell.text, cell.anchor, cell.page).target
        text = element("a", cell.text, href=target)
    return replace(cell, text=text)


def _chart(chart: doc.Chart) -> Markup:
    picture = CHARTS[type(chart)](chart)
    if not (chart.title or chart.about):
        return picture
    return figure(picture, title=chart.title, about=chart.about)


def _folded(block: doc.Folded) -> Markup:
    if "html" not in block.media:
        return Markup("")
    summary = element("summary", block.title)
    return element("details", summary, _blocks(block.blocks), open=block.is_open)


def _only(block: doc.Only) -> Markup:
    return _blocks(doc.inside(block, "html"))


def _beside(block: doc.Beside) -> Markup:
    return beside(*map(_block, block.blocks))


def _part(section: DocumentSection) -> Markup:
    """Write a section that stands inside of another, as a card that opens where it has a tone."""
    body = _blocks(section.blocks)
    if section.tone:
        about = element("span", section.about, class_="muted") if section.about else Markup("")
        summary = element("summary", element("b", section.title), " ", about)
        return element("details", summary, body, class_=f"card {section.tone}")
    about = element("p", section.about, class_="about") if section.about else Markup("")
    return joined([element("h3", section.title, id=section.anchor or None), about, body])


BLOCKS: dict[type, Callable[[Any], Markup]] = {
    doc.Paragraph: _paragraph,
    doc.Bullets: _bullets,
    doc.Facts: _facts,
    doc.Preformatted: _preformatted,
    doc.Attachment: _attachment,
    doc.Table: _table,
    doc.Chart: _chart,
    doc.Folded: _folded,
    doc.Only: _only,
    doc.Beside: _beside,
    DocumentSection: _part,
}
CHARTS: dict[type[doc.Chart], Callable[[Any], Markup]] = {
    doc.TrendLine: trend_picture,
    ForestPlot: forest_picture,
    doc.MarginPlot: margin_picture,
    doc.ParetoPlot: pareto_picture,
    doc.Pictures: pictures_drawing,
    doc.RunOrder: run_order,
    doc.Distribution: overlaid_distributions,
    FlameGraph: flame_graph,
    doc.LogPlot: log_picture,
    Roofline: roofline_chart,
    StackedLevels: levels_chart,
    Timeline: timeline_chart,
}
"""Kind of chart -> what draws it."""
SCRIPTS: dict[type, tuple[str, ...]] = {
    FlameGraph: ("flame.js",),
    Timeline: ("timeline.js",),
}
"""Kind of chart -> the scripts that it needs."""


def _words(words: doc.Words) -> Markup:
    return joined(PIECES[type(each)](each) for each in doc.pieces(words))


PIECES: dict[type, Callable[[Any], str]] = {
    str: lambda piece: piece,
    doc.Code: lambda piece: element("code", piece.text),
    doc.Strong: lambda piece: element("strong", piece.text),
    doc.Link: lambda piece: element("a", piece.text, href=piece.target),
}


# ---------------------------------------------------------------- the end of a page: where it was
# measured, what to doubt, and the raw values to take away

NAMES = {
    "cpu_model": "processor",
    "instruction_sets": "instruction sets",
    "physical_cores": "cores",
    "logical_cores": "hardware threads",
    "usable_cores": "usable cores",
    "cpu_quota": "quota of cores",
    "caches": "caches",
    "governor": "frequency governor",
    "frequency_mhz": "frequency",
    "memory_bytes": "memory",
    "steal_share": "time taken by other guests",
    "load_average": "load when it began",
    "system": "system",
    "machine": "architecture",
    "python": "Python",
    "libraries": "libraries",
    "blas": "BLAS",
    "threads": "thread settings",
    "threads_in_force": "threads",
    "commit": "commit",
    "fingerprint": "fingerprint of the machine",
}
"""Field of an Environment -> what a reader calls it. Fields without a row keep their own name."""


def appendix(
    environment: Environment | Mapping[str, Any] | None,
    notes: Sequence[str] = (),
    raw: Mapping[str, Any] | None = None,
    *,
    file_name: str = "tinytorch-report.json",
) -> Section:
    """Return the section with environment, notes and version.

    `raw` is what the page holds as ``Page.raw``; with it, a button offers it as a file.
    """
    body = joined(
        [
            _notes(notes),
            _environment(environment),
            _raw(file_name) if raw else Markup(""),
        ]
    )
    return Section("appendix", "Appendix", body, "Where the numbers come from.")


def _notes(notes: Sequence[str]) -> Markup:
    if not notes:
        return Markup("")
    return joined([element("h3", "Notes"), listed(notes)])


def _environment(environment: Environment | Mapping[str, Any] | None) -> Markup:
    heading = element("h3", "Environment")
    fields = environment.to_dict() if isinstance(environment, Environment) else environment
    unknown = element("p", "Where it was measured was not kept.", class_="muted")
    rows = [
        ("this page", f"written by tinytorch {__version__}"),
        *_rows(fields or {}),
    ]
    drawn = table(
        [doc.Column("what"), doc.Column("value")], rows, sortable=False, class_="environment"
    )
    return joined([heading, drawn] if fields else [heading, unknown, drawn])


def _rows(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [name for name in NAMES if name in fields]
    others = [name for name in fields if name not in NAMES]
    return [
        (NAMES.get(name, name.replace("_", " ")), _field_text(name, fields[name]))
        for name in [*known, *others]
    ]


def _raw(file_name: str) -> Markup:
    button = element(
        "button", "Save the raw values", type="button", data_save="raw", data_file=file_name
    )
    about = "Everything that this page was made from, as JSON; it is inside of this file."
    return joined(
        [
            element("h3", "Raw values"),
            element("p", about, class_="muted"),
            element("p", button, class_="tools"),
        ]
    )


def _field_text(name: str, value: Any) -> str:
    if value is None or value == {} or value == []:
        return UNKNOWN
    if name == "memory_bytes":
        return bytes_text(value)
    if name == "steal_share":
        return percent_text(value)
    if name == "frequency_mhz":
        return f"{value:,.0f} MHz"
    if name == "commit":
        return str(value["hash"])[:12] + (" and changes" if value["is_dirty"] else "")
    if name == "caches":
        return ", ".join(f"{level} {_cache_text(each)}" for level, each in value.items())
    return _any_text(value)


def _cache_text(cache: Mapping[str, int]) -> str:
    count = round(cache["total_bytes"] / cache["one_bytes"])
    size = bytes_text(cache["one_bytes"])
    return size if count == 1 else f"{count} x {size}"


def _any_text(value: Any) -> str:
    """Write a value whose name says nothing about its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_any_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_any_text, value))
    return str(value)


# ---------------------------------------------------------------- any result as one HTML file


def report_html(result: Any, **context: Any) -> str:
    """Return the HTML file of a profile, comparison, optimization, suite run, history or board.

    A suite run is the sequence of its outcomes, a history one of trends. What a page can show
    beside the result goes into `context`, such as the `name` of a suite.
    """
    return render_page(page_of(result, **context))


def page_of(result: Any, **context: Any) -> Page:
    """Return the page of a result; :func:`report_html` writes it."""
    return page_from(doc.document_of(result, **context))
