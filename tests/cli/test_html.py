import argparse
import webbrowser
from pathlib import Path

import pytest
from example_comparisons import comparison

from tinytorch.cli.console import Output
from tinytorch.cli.options import add_html_option, check_html_path, write_html
from tinytorch.errors import SettingError

OUTPUT = Output("probe")


@pytest.fixture
def opened(monkeypatch):
    """Remember what would have been shown in a browser."""
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda url: addresses.append(url) is None)
    return addresses


def test_nothing_is_written_unless_asked_for(opened):
    parser = argparse.ArgumentParser()
    add_html_option(parser)
    options = parser.parse_args([])
    assert (options.html, options.open) == (None, False)
    check_html_path(options.html, is_opened=options.open)
    write_html(options.html, object(), OUTPUT, is_opened=options.open)
    assert opened == []


def test_a_path_is_a_path():
    parser = argparse.ArgumentParser()
    add_html_option(parser)
    assert parser.parse_args(["--html", "a/b.html", "--open"]).html == Path("a/b.html")


def test_opening_needs_a_file_to_open():
    with pytest.raises(SettingError, match="name that file"):
        check_html_path(None, is_opened=True)


def test_what_cannot_be_written_is_refused(tmp_path):
    check_html_path(tmp_path / "x.html", is_opened=True)
    with pytest.raises(SettingError, match="is a folder"):
        check_html_path(tmp_path)


def test_a_report_is_written_and_opened_by_its_whole_address(tmp_path, monkeypatch, capsys, opened):
    monkeypatch.chdir(tmp_path)
    write_html(Path("a b.html"), comparison(), OUTPUT, is_opened=True, about=["candidate: <x>"])
    html = (tmp_path / "a b.html").read_text("utf-8")
    assert html.startswith("<!doctype html>")
    assert "candidate: &lt;x&gt;" in html
    assert opened == [(tmp_path / "a b.html").as_uri()]
    assert capsys.readouterr().err == "wrote a b.html\n"


@pytest.mark.parametrize("raises", [False, True])
def test_no_browser_is_no_error(tmp_path, monkeypatch, capsys, raises):
    def none(url):
        if raises:
            raise webbrowser.Error("none")
        return False

    monkeypatch.setattr(webbrowser, "open", none)
    write_html(tmp_path / "x.html", comparison(), OUTPUT, is_opened=True)
    assert "no browser could be started; open " in capsys.readouterr().err
