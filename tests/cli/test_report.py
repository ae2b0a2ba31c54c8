import io
import json

import pytest
from example_comparisons import with_evidence
from example_records import record
from kept_attempts import optimization

from tinytorch.benchmarking.suite_run import ENTRY_KIND
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload
from tinytorch.records.record import comparison_record
from tinytorch.records.store import open_store
from tinytorch.tuning.attempt import Settings
from tinytorch.tuning.records import optimization_record, origin_of

WORKLOAD = Workload("w", Linear(4, 3, rng=0), (Tensor([[1, 2, 3, 4.0]]),))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keep records in a store of this test, and give their hashes."""
    file = tmp_path / "records.sqlite"
    monkeypatch.setenv("TINYTORCH_RECORDS", str(file))

    def keep(*records):
        with open_store(file) as store:
            return store.add_all(records)

    return keep


def kept_optimization():
    return optimization_record(optimization(), origin_of(WORKLOAD, Settings()))


def kept_comparison():
    return comparison_record(with_evidence(), name="b against a", settings={})


def test_an_optimization_is_shown_again(kept, capsys):
    (hash,) = kept(kept_optimization())
    assert main(["report", hash[:10]]) == 0
    assert "int8-dynamic" in capsys.readouterr().out.splitlines()[1]


def test_the_last_one_is_shown(kept, capsys):
    kept(kept_optimization())
    kept(kept_comparison())
    assert main(["report", "last"]) == 0
    assert "b against a" in capsys.readouterr().out


def test_a_run_of_a_suite_is_shown(kept, capsys):
    settings = {"target": "mlp", "scenario": {"name": "single-stream"}}
    details = {"suite": "tiny", "examples": 1}
    fields = {"kind": ENTRY_KIND, "settings": settings, "details": details, "run": "r1"}
    hashes = kept(
        record(name="a/single-stream", **fields), record(name="b/single-stream", hours=1, **fields)
    )
    assert main(["report", hashes[0]]) == 0
    shown = capsys.readouterr().out
    assert "\nSuite tiny (" in shown
    assert "run r1, 2 entries" in shown


def test_json_can_be_reported_once_more(kept, capsys, monkeypatch):
    (hash,) = kept(kept_comparison())
    assert main(["report", hash, "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["source"] == f"record {hash[:12]}"
    monkeypatch.setattr("sys.stdin", io.StringIO(printed))
    assert main(["report", "-"]) == 0
    assert "b against a" in capsys.readouterr().out


def test_a_file_of_a_command_is_shown(tmp_path, capsys):
    file = tmp_path / "result.json"
    fields = {"command": "optimize", "optimization": optimization().to_dict()}
    file.write_text(json.dumps(fields), "utf-8")
    assert main(["report", str(file)]) == 0
    assert "int8-dynamic" in capsys.readouterr().out


@pytest.mark.parametrize("make", [kept_optimization, kept_comparison])
def test_the_page_and_its_twin_are_written(kept, tmp_path, capsys, make):
    kept(make())
    page, twin = tmp_path / "report.html", tmp_path / "report.md"
    assert main(["report", "last", "--html", str(page), "--markdown", str(twin)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert twin.read_text("utf-8").startswith("#")
    assert capsys.readouterr().err.splitlines() == [f"wrote {twin}", f"wrote {page}"]


def test_markdown_can_take_the_place_of_the_text(kept, capsys):
    kept(kept_comparison())
    assert main(["report", "last", "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("#")


def test_the_store_can_be_named(tmp_path, capsys):
    with open_store(tmp_path / "other.sqlite") as store:
        store.add(kept_comparison())
    assert main(["report", "last", "--store", str(tmp_path / "other.sqlite")]) == 0
    assert "b against a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["abcdef"], ExitCode.USAGE, "has a hash that starts with abcdef"),
        (["nothex"], ExitCode.USAGE, "'nothex' is no start of a hash"),
        (["no/such.json"], ExitCode.USAGE, "no/such.json cannot be read"),
        (["last", "--open"], ExitCode.USAGE, "--open shows the report that --html FILE writes"),
        (["last", "--html", "no/folder/x.html"], ExitCode.USAGE, "there is no folder"),
        (["last", "--markdown", "no/folder/x.md"], ExitCode.USAGE, "there is no folder"),
    ],
)
def test_what_cannot_be_shown_is_one_line(kept, capsys, words, code, message):
    kept(kept_comparison())
    assert main(["report", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert message in line


def test_without_a_store_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "none.sqlite"))
    assert main(["report", "last"]) == ExitCode.INVALID
    assert "no record store at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_one_line(tmp_path, capsys):
    file = tmp_path / "half.json"
    file.write_text('{"command": "optimize", "optimization": {"schema"', "utf-8")
    assert main(["report", str(file)]) == ExitCode.INVALID
    assert "half.json is no JSON, or not all of it" in capsys.readouterr().err
