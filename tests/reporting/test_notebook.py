from rich.text import Text

from tinytorch.reporting.markdown import notebook_html


def test_html_shows_what_a_terminal_would():
    html = notebook_html(Text("a plan", style="bold"))
    assert html.startswith("<pre")
    assert "a plan" in html
    assert "bold" in html


def test_nothing_is_taken_for_markup_or_html():
    html = notebook_html("[red]x[/red] <b>")
    assert "[red]x[/red] &lt;b&gt;" in html


def test_the_width_is_that_of_a_terminal():
    assert notebook_html("a b c d", width=3).count("\n") > notebook_html("a b c d").count("\n")
