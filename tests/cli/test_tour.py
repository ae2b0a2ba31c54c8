import json
import tempfile
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import pytest
from example_tours import faster, smaller, tour_of

from tinytorch.cli.main import main
from tinytorch.tuning import tour as tour_module


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """Take an imaginary tour in an empty folder."""
    monkeypatch.chdir(tmp_path)
    seeds = []

    def use(tour):
        def take_tour(seed, *, watch, on_introduction, on_writing, on_attempt, on_visit):
            seeds.append(seed)
            on_introduction(tour.introduction)
            on_writing(tour.writing)
            for visit in tour.visits:
                with ExitStack() as stack:
                    progress = stack.enter_context(watch(visit.stop.target))
                    progress.describe("trying")
                    progress.advance()
                    for attempt in visit.optimization.attempts:
                        on_attempt(visit.stop, attempt)
                on_visit(visit)
            return tour

        monkeypatch.setattr(tour_module, "take_tour", take_tour)
        return seeds

    return use


@pytest.fixture
def report(tmp_path):
    return tmp_path / "tinytorch-tour.html"


def test_the_tour_tells_its_chapters_and_writes_the_report(capsys, taken, report):
    seeds = taken(tour_of(faster(), smaller()))
    assert main(["tour", "--seed", "4"]) == 0
    told = capsys.readouterr()
    chapters = ["Two trained models", "1. gpt writes ", "2. cnn: ", "3. mlp: ", str(report)]
    places = [told.out.index(each) for each in chapters]
    assert places == sorted(places)
    assert "cnn: int8: 1.67x faster" in told.err
    assert "mlp: int4: as fast (" in told.err
    assert report.read_text("utf-8").startswith("<!doctype html>")
    assert seeds == [4]


def test_the_tour_speaks_json_and_quiet_leaves_stderr_alone(capsys, taken, report):
    taken(tour_of(faster(), smaller()))
    assert main(["tour", "--json", "--quiet"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert told.err == ""
    assert (found["command"], found["report"]) == ("tour", str(report))
    assert [each["target"] for each in found["visits"]] == ["cnn", "mlp"]
    assert found["visits"][0]["optimization"]["recommended"] == "int8 + fused"


def test_the_report_goes_where_it_is_wanted(capsys, taken, report, tmp_path):
    taken(tour_of(faster()))
    assert main(["tour", "--html", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").exists()
    assert not report.exists()


def test_a_report_that_cannot_be_written_is_refused_first(capsys, taken, tmp_path):
    seeds = taken(tour_of(faster()))
    assert main(["tour", "--html", str(tmp_path / "missing" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert seeds == []


def test_a_folder_that_cannot_be_written_gives_way_to_the_temporary_one(
    capsys, taken, report, tmp_path, monkeypatch
):
    taken(tour_of(faster()))
    spare = tmp_path / "spare"
    spare.mkdir()
    report.mkdir()  # nobody can write a file of this name
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    assert main(["tour"]) == 0
    told = capsys.readouterr()
    (made,) = spare.glob(f"*/{report.name}")
    assert made.parent.stat().st_mode & 0o077 == 0, (
        "a folder of its own, where nobody plants a link"
    )
    assert f"the report goes to {made}" in told.err
    assert str(made) in told.out


def test_open_shows_the_report_in_a_browser(capsys, taken, report, monkeypatch):
    taken(tour_of(faster()))
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert main(["tour", "--open", "--quiet"]) == 0
    assert opened == [report.as_uri()]


def test_an_interrupted_tour_shows_what_it_has(capsys, taken, report):
    taken(tour_of(faster(), was_interrupted=True))
    assert main(["tour"]) == 130
    assert "Interrupted" in capsys.readouterr().out
    assert report.exists()


@pytest.mark.slow
def test_the_whole_tour_works(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["tour", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {each["target"]: each["optimization"] for each in found["visits"]}
    assert set(by_name) == {"cnn", "mlp"}
    assert found["writing"]["cached"]["verdict"] == "faster"
    assert all(each["attempts"] and each["advice"] for each in by_name.values())
    assert Path(found["report"]).stat().st_size < 1_000_000
