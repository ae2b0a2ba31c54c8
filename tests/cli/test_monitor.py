"""``tinytorch monitor report``."""

import json

import pytest
from example_monitors import changed, snapshot

from tinytorch.cli.main import main


@pytest.fixture
def kept(tmp_path):
    """Give ``kept(**about) -> path`` of a snapshot in a file."""

    def write(**about):
        file = tmp_path / "snapshot.json"
        file.write_text(json.dumps(snapshot(**about).to_dict()), "utf-8")
        return str(file)

    return write


def test_a_report_has_the_snapshot_and_advice(kept, capsys):
    assert main(["monitor", "report", kept(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["snapshot"] == snapshot().to_dict()
    assert {"production layer", "production waiting"} <= {each["rule"] for each in told["advice"]}


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({}, 0),
        ({"is_learned": False}, 3),
        ({"changes": [changed("layer")]}, 1),
        ({"changes": [changed("model")]}, 1),
        ({"changes": [changed("memory")]}, 1),
        ({"changes": [changed("layer", ended=1.0)]}, 0),
        ({"changes": [changed("machine"), changed("inputs")]}, 0),
    ],
)
def test_a_check_fails_for_what_is_the_models_own(kept, about, code):
    file = kept(**about)
    assert main(["monitor", "report", file, "--check", "--quiet", "--json"]) == code
    assert main(["monitor", "report", file, "--quiet", "--json"]) == 0


def test_a_page_and_a_workload_are_written(kept, tmp_path):
    page, workload = tmp_path / "page.html", tmp_path / "production.py"
    words = ["--html", str(page), "--workload", str(workload), "--target", "mlp", "--quiet"]
    assert main(["monitor", "report", kept(), *words]) == 0
    assert "8x784" in page.read_text("utf-8")
    assert main(["profile", f"{workload}:make", "--runs", "2", "--no-ceilings", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["none.json"], 2),
        (["x.json", "--workload", "y.py"], 2),
        (["x.json", "--target", "mlp"], 2),
        (["x.json", "--workload", "y.txt", "--target", "mlp"], 2),
        (["http://127.0.0.1:1/monitor"], 4),
        ([], 2),
    ],
)
def test_wrong_usage_is_told_by_the_exit_code(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["monitor", "report", *words]) == code
    assert capsys.readouterr().err


def test_what_is_no_snapshot_is_an_invalid_measurement(tmp_path, capsys):
    file = tmp_path / "x.json"
    file.write_text("[1, 2]")
    assert main(["monitor", "report", str(file)]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
