"""Letters that steer a terminal reach neither it nor Markdown, wherever a name comes from."""

import re

import pytest
from rich.table import Table
from rich.text import Text

from tinytorch.cli.console import Output
from tinytorch.cli.main import _after_error
from tinytorch.errors import SettingError
from tinytorch.reading import HIDDEN, REPLACEMENT, as_plain
from tinytorch.reporting import document as doc
from tinytorch.reporting.markdown import write
from tinytorch.reporting.terminal import plain

NASTY = "na\x1b[8mme\x07\x1b]0;title\x07\u202e\x9b2J"
DOCUMENT = doc.Document(
    f"Title {NASTY}",
    doc.Banner(f"verdict {NASTY}", f"sentence {NASTY}", tone="good"),
    (
        doc.Section(
            "part",
            f"Part {NASTY}",
            (
                doc.Paragraph((f"words {NASTY}", doc.Code(NASTY), doc.Strong(NASTY))),
                doc.Bullets([NASTY, doc.Item(NASTY, [NASTY])], NASTY),
                doc.Facts([(NASTY, NASTY)]),
                doc.Preformatted(NASTY),
                doc.Table([doc.Column("a", "code"), doc.Column(NASTY)], [(NASTY, NASTY)]),
            ),
        ),
    ),
    (NASTY,),
)


def test_the_letters_are_found():
    assert as_plain(NASTY).count(REPLACEMENT) == 6
    assert HIDDEN.search("a\tb\nc") is None


@pytest.mark.parametrize("show", [plain, write])
def test_a_document_has_none(show):
    text = show(DOCUMENT)
    assert "name" not in text or REPLACEMENT in text
    assert REPLACEMENT in text
    assert HIDDEN.search(text) is None


def test_the_terminal_gets_none_but_those_of_colours(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = Table(NASTY)
    table.add_row(Text(NASTY, "bold red"))
    output = Output("x")
    output.result({}, table)
    output.result({}, NASTY)
    output.show({}, DOCUMENT)
    output.say(NASTY)
    _after_error(SettingError(f"no {NASTY}"))
    for text in capsys.readouterr():
        assert REPLACEMENT in text
        assert HIDDEN.search(re.sub(r"\x1b\[[0-9;]*m", "", text)) is None
        assert "\x1b[8m" not in text
