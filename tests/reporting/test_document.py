"""The same document in every medium: what each shows, and that text stays text."""

import pytest
from example_pages import HOSTILE
from html_reading import Reading
from terminal import shown

from tinytorch.errors import SettingError
from tinytorch.reporting.document import (
    BUILDERS,
    Banner,
    Beside,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Folded,
    Item,
    Link,
    Only,
    Paragraph,
    Preformatted,
    Row,
    Section,
    Strong,
    Table,
    TrendLine,
    document_of,
    loaded,
    notes_once,
    plain_text,
)
from tinytorch.reporting.html.page import page_from, render_page
from tinytorch.reporting.markdown import write
from tinytorch.reporting.terminal import render

TABLE = Table(
    [
        Column("name", "code", least=10),
        Column("first", "number"),
        Column("second", "number", rank=2),
        Column("third", rank=1, least=6),
        Column("empty"),
        Column("unknown"),
    ],
    [
        ("short", Cell("1", 1), "333", "x" * 12, "", "-"),
        Row(("a label that is rather long", Cell("22", 22), "4", "y", " ", "-"), tone="bad"),
    ],
)


def terminal(*blocks, width=80):
    return shown(render(Document("", None, blocks)), width=width).splitlines()


def markdown(*blocks):
    return write(Document("", None, blocks))


def page(*blocks, **fields):
    return Reading(render_page(page_from(Document("title", None, blocks, **fields))))


def whole(text):
    """Return a document that has a text wherever there can be one."""
    words = (text, Code(text), Strong(text), Link(text, "a"))
    tree = [Row((Cell(text, anchor="a", title=text), text), text), Row((text, text), parent=text)]
    blocks = (
        Paragraph(words),
        Bullets([words, Item(words, [words])], text),
        Facts([(text, words)]),
        Preformatted(text, text),
        Table([Column(text, "code", text), Column(text)], tree, text),
        TrendLine([1.0, 2.0], text, ends=(text, text), titles=[text, text], title=text),
        Folded(text, (Paragraph(text),)),
        Beside((Paragraph(text), Section("b", text, (Paragraph(text),), text))),
    )
    banner = Banner(text, text, ((text, text),), "bad")
    parts = (Section("a", text, blocks, text), Paragraph(text))
    return Document(text, banner, parts, (text,), {text: text}, {text: text}, text, text)


def test_no_text_becomes_markup():
    html = render_page(page_from(whole(HOSTILE)))
    assert HOSTILE not in html
    outside = [line for line in write(whole(HOSTILE)).splitlines() if "`" not in line]
    assert not any("<script" in line for line in outside if line.startswith(("#", "|", "-", "*")))
    assert HOSTILE in shown(render(whole(HOSTILE)), width=4000)


def test_square_brackets_are_text_in_a_terminal():
    assert shown(render(whole("[bold]x[0]")), width=200).count("[bold]x[0]") > 20


def test_the_verdict_comes_first_and_notes_come_last():
    found = Document("title", Banner("worse", "by 3%", tone="bad"), (TABLE,), ("a doubt",))
    lines = shown(render(found)).splitlines()
    assert lines[:3] == ["worse", "by 3%", "title"]
    assert lines[-2:] == ["Notes", "- a doubt"]
    assert write(found).startswith("### ❌ worse\n\ntitle: by 3%\n")
    assert "<summary>Notes</summary>\n\n- a doubt\n" in write(found)
    read = Reading(render_page(page_from(found)))
    assert read.texts("h1") == ["worse"]
    assert [each["id"] for each in read.all("section")] == ["part-1", "appendix"]
    assert "a doubt" in read.texts("li")


def test_columns_that_say_nothing_are_left_out_everywhere():
    heads = ["name", "first", "second", "third"]
    assert terminal(TABLE)[0].split() == heads
    assert markdown(TABLE).splitlines()[0] == "| | name | first | second | third |"
    assert page(TABLE).texts("th")[:4] == heads


def test_a_table_without_rows_keeps_its_columns():
    assert terminal(Table([Column("a"), Column("b")], []))[0].split() == ["a", "b"]


def test_rows_have_the_mark_of_their_tone_in_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[1] == "|---|---|---:|---:|---|"
    assert lines[3].startswith("| ❌ | `a label")


def test_labels_and_columns_are_cut_before_a_column_goes():
    head, _, long = terminal(TABLE, width=40)
    assert head.split() == ["name", "first", "second", "third"]
    assert "…" in long
    assert "xxxxx…" in terminal(TABLE, width=33)[1]


def test_the_highest_rank_goes_first():
    assert terminal(TABLE, width=28)[0].split() == ["name", "first", "third"]
    assert terminal(TABLE, width=18)[0].split() == ["name", "first"]


@pytest.mark.parametrize("width", range(18, 100, 3))
def test_no_line_of_a_table_is_longer_than_the_terminal(width):
    lines = terminal(TABLE, width=width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)


def test_a_terminal_indents_a_tree_and_leaves_out_what_is_folded():
    rows = [
        Row(("top", "1"), "top"),
        Row(("open", "2"), "open", "top"),
        Row(("shut", "3"), "shut", "top", is_folded=True),
        Row(("inner", "4"), "inner", "shut"),
        Row(("innermost", "5"), None, "inner"),
    ]
    lines = terminal(Table([Column("layer"), Column("n", "number")], rows))
    assert [line.split()[0] for line in lines] == ["layer", "top", "open", "shut"]
    assert lines[2].startswith("  open")
    assert len(page(Table([Column("layer"), Column("n")], rows)).all("tr")) == 6


def test_a_cell_can_hold_a_bar_or_a_small_line():
    table = Table(
        [Column("a"), Column("b", "bar"), Column("c")],
        [("x", Cell("50%", bar=0.5), Cell("", trend=(1.0, 2.0)))],
    )
    (row,) = terminal(table)[1:]
    assert row.split() == ["x", "████", "50%", "▁█"]
    assert "| x | 50% | ▁█ |" in markdown(table)
    assert len(page(table).all("polyline")) == 1


def test_what_is_folded_is_for_a_second_look():
    folded = Folded("More", (Paragraph("inside"),), is_open=True)
    assert terminal(folded) == []
    assert markdown(folded).startswith("<details><summary>More</summary>\n\ninside\n\n</details>")
    (details,) = page(folded).all("details")
    assert "open" in details


@pytest.mark.parametrize("medium", ["terminal", "markdown", "html"])
def test_a_block_can_be_for_one_medium_only(medium):
    block = Only((medium,), (Paragraph("marked"),))
    found = {
        "terminal": "marked" in terminal(block),
        "markdown": "marked" in markdown(block),
        "html": "marked" in page(block).texts("p"),
    }
    assert found == {each: each == medium for each in found}


def test_pieces_of_a_line_keep_the_spaces_between_them():
    words = ("see ", Code("f|x"), " and ", Strong("this"))
    assert plain_text(words) == "see f|x and this"
    assert terminal(Paragraph(words)) == ["see f|x and this"]
    assert markdown(Paragraph(words)) == "see `f\\|x` and **this**\n"
    assert page(Paragraph(words)).texts("code") == ["f|x"]


def test_links_lead_to_sections_of_the_page():
    found = page(Paragraph(Link("there", "goal")), Section("goal", "Goal", (Paragraph("x"),)))
    assert "#goal" in [each["href"] for each in found.all("a")]
    assert "goal" in [each["id"] for each in found.all("section")]


def test_paragraphs_in_a_row_stand_together_in_a_terminal():
    assert terminal(Paragraph("a"), Paragraph("b"), Bullets(["c"])) == ["a", "b", "", "- c"]


def test_sections_without_anything_to_show_have_no_heading():
    assert terminal(Section("a", "A", (Folded("f", (Paragraph("x"),)),))) == []
    assert markdown(Section("a", "A", (Only(("html",), (Paragraph("x"),)),))).strip() == ""


@pytest.mark.parametrize("builder", BUILDERS.values())
def test_every_builder_can_be_imported(builder):
    assert callable(loaded(builder))


def test_a_result_without_a_builder_is_refused():
    with pytest.raises(SettingError, match="a int has no report"):
        document_of(3)


def test_notes_that_are_alike_are_said_once():
    alike = [("a", "5 of 9 calls"), ("b", "6 of 9 calls"), ("c", "odd"), ("a", "odd"), ("b", "own")]
    assert notes_once(alike, total=3, every="all") == [
        "a: 5 of 9 calls; the like of 1 more",
        "c and 1 more: odd",
        "b: own",
    ]
    same = [(name, "the same") for name in "abc"]
    assert notes_once(same, total=3, every="all") == ["all: the same"]
    assert notes_once(same[:1], total=1, every="all") == ["a: the same"]
