import argparse

import pytest
from example_comparisons import comparison
from example_records import series
from example_suites import write_suite

from tinytorch.cli.console import Output
from tinytorch.cli.main import main
from tinytorch.cli.options import (
    add_markdown_option,
    check_markdown_path,
    show_result,
    write_markdown,
)
from tinytorch.errors import SettingError
from tinytorch.records.store import RecordStore
from tinytorch.reporting.markdown import report_markdown

OUTPUT = Output("compare")


def test_the_option_takes_a_file_or_stdout():
    parser = argparse.ArgumentParser()
    add_markdown_option(parser.add_argument_group("showing"))
    assert parser.parse_args([]).markdown is None
    assert parser.parse_args(["--markdown", "-"]).markdown == "-"
    assert parser.parse_args(["--markdown", "a.md"]).markdown == "a.md"


def test_stdout_has_room_for_one():
    with pytest.raises(SettingError, match="both write to stdout"):
        check_markdown_path("-", Output("compare", as_json=True))
    assert check_markdown_path("-", OUTPUT) is None
    assert check_markdown_path(None, Output("compare", as_json=True)) is None


def test_a_file_that_cannot_be_written_is_known_before(tmp_path):
    with pytest.raises(SettingError, match="there is no folder"):
        check_markdown_path(str(tmp_path / "none" / "a.md"), OUTPUT)
    assert check_markdown_path(str(tmp_path / "a.md"), OUTPUT) is None


@pytest.mark.parametrize(("markdown", "is_markdown"), [(None, False), ("a.md", False), ("-", True)])
def test_markdown_takes_the_place_of_the_text_on_stdout(markdown, is_markdown, capsys):
    options = argparse.Namespace(markdown=markdown, html=None)
    show_result(options, OUTPUT, {}, comparison())
    assert (capsys.readouterr().out == report_markdown(comparison())) is is_markdown


def test_a_file_is_written_and_said(tmp_path, capsys):
    path = tmp_path / "a.md"
    write_markdown(str(path), comparison(), OUTPUT, about=["baseline: x"])
    assert path.read_text("utf-8") == report_markdown(comparison(), about=["baseline: x"])
    assert capsys.readouterr().err == f"wrote {path}\n"


def test_nothing_is_written_unasked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_markdown(None, comparison(), OUTPUT)
    write_markdown("-", comparison(), OUTPUT)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_history_writes_its_trends(tmp_path, capsys):
    store, file = tmp_path / "records.sqlite", tmp_path / "a.md"
    with RecordStore(store) as opened:
        opened.add_all(series([0.002, 0.003]))
    assert main(["history", "gpt", "--store", str(store), "--markdown", "-"]) == 0
    shown = capsys.readouterr().out
    assert "\nHistory of gpt: " in shown
    assert main(["history", "gpt", "--store", str(store), "--markdown", str(file)]) == 0
    assert file.read_text("utf-8") == shown
    assert "### History" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["history", "--check", "--markdown", "a.md"],
            "--markdown cannot be combined with --check",
        ),
        (["compare", "--selfcheck", "--markdown", "-"], "--markdown cannot be combined"),
        (["compare", "mlp", "mlp", "--json", "--markdown", "-"], "both write to stdout"),
        (
            ["bench", "a.toml", "--list", "--markdown", "-"],
            "--list cannot be combined with --markdown",
        ),
        (["bench", "a.toml", "--markdown", "none/a.md"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_suite_writes_what_it_has_finished(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path, "fine [1]")
    store = str(tmp_path / "records.sqlite")
    assert main(["bench", str(suite), "--store", store, "--markdown", "a.md"]) == 0
    written = (tmp_path / "a.md").read_text("utf-8")
    assert written.startswith("### ⚪ 1 entry measured\n\nSuite tiny: ")
    assert "wrote a.md" in capsys.readouterr().err


def test_a_comparison_is_printed_as_markdown(capsys):
    code = main(["compare", "mlp", "mlp", "--budget", "0.05", "--no-evidence", "--markdown", "-"])
    assert code in (0, 1, 3)  # whatever noise says
    shown = capsys.readouterr().out
    assert shown.startswith("### ")
    assert "| time per call |" in shown
