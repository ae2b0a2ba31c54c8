import pytest
from example_pages import HOSTILE

from tinytorch.reporting.markdown import code, escaped, fenced, folded, listed, table_rows


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", r"a\|b"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("two\n  lines", "two lines"),
        ("a & b", "a &amp; b"),
        ("[a](b) #1 @me", r"\[a\](b) \#1 \@me"),
    ],
)
def test_text_stays_text(text, written):
    assert escaped(text) == written


def test_no_html_comes_through():
    assert "<" not in escaped(HOSTILE)
    assert "<" not in listed([HOSTILE])[0]


def test_code_fits_a_cell():
    assert code("a|b `c`\nd") == r"`a\|b 'c' d`"


def test_a_table_has_its_alignments():
    assert table_rows(["", "n"], [["a", "1"], ["", "2"]], alignments=["left", "right"]) == [
        "| | n |",
        "|---|---:|",
        "| a | 1 |",
        "| | 2 |",
    ]


def test_a_picture_is_a_block_that_no_name_can_end():
    assert fenced("plain  ") == "```text\nplain\n```"
    assert fenced("a ``` b").startswith("````text\n")
    assert fenced("a ``` b").endswith("\n````")


def test_what_is_folded_needs_lines():
    assert folded("Notes", []) == []
    assert folded("A <b>", ["- x"]) == [
        "<details><summary>A &lt;b&gt;</summary>",
        "",
        "- x",
        "",
        "</details>",
        "",
    ]
