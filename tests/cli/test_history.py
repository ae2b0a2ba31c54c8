import json

import pytest
from example_comparisons import with_evidence
from example_records import record, series

from tinytorch.cli.main import main
from tinytorch.records.record import Record, comparison_record
from tinytorch.records.store import RecordStore


@pytest.fixture
def path(tmp_path, monkeypatch):
    chosen = tmp_path / "records.sqlite"
    monkeypatch.setenv("TINYTORCH_RECORDS", str(chosen))
    return chosen


@pytest.fixture
def records(path):
    made = [*series([0.002] * 10 + [0.003] * 10), *series([7.0], name="mlp", metric="accuracy")]
    with RecordStore(path) as store:
        store.add_all(made)
    return made


def as_json(capsys, *arguments, code=0):
    assert main(["history", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def damage(path):
    with RecordStore(path) as store:
        store._database.connection.execute("UPDATE records SET body = '{}' WHERE id = 3")


@pytest.mark.parametrize("exists", [False, True])
def test_an_empty_store_says_how_to_fill_it(path, capsys, exists):
    if exists:
        RecordStore(path).close()
    assert main(["history"]) == 0
    shown = capsys.readouterr().out
    assert "No records yet" in shown
    assert "tinytorch bench" in shown
    assert "tinytorch compare --save" in shown
    assert as_json(capsys)["series"] == []


@pytest.mark.parametrize("arguments", [[], ["gpt"], ["--check"]])
def test_looking_creates_no_store(path, capsys, arguments):
    assert main(["history", *arguments]) == 0
    assert not path.exists()
    assert "No records yet" in capsys.readouterr().out
    assert as_json(capsys, *arguments)["store"] == str(path)


@pytest.mark.parametrize("arguments", [["--show", "abcd"], ["--export", "x.jsonl"]])
def test_what_needs_records_says_that_there_is_no_store(path, capsys, arguments):
    assert main(["history", *arguments]) == 4
    assert "yet; `tinytorch bench`" in capsys.readouterr().err
    assert not path.exists()


def test_series_are_listed(records, capsys):
    assert main(["history"]) == 0
    shown = capsys.readouterr().out
    assert "gpt" in shown
    assert "3.00 ms" in shown
    assert "mlp" in shown


@pytest.fixture
def comparisons(path):
    """Two comparisons with long names and everything that is known about them."""
    name = "benchmarks/models/narrow.py:make against benchmarks/models/wide.py:make"
    with RecordStore(path) as store:
        for ratio in (0.8, 0.7):
            store.add(comparison_record(with_evidence(ratio), name=name, settings={}))
    return name


def test_a_series_has_one_line_with_its_usual_metric(comparisons, capsys):
    assert main(["history"]) == 0
    (head, line) = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["name", "metric"]
    assert line.startswith("benchmarks/models/narrow.py")
    assert " latency " in line
    assert "700 us" in line
    assert max(len(head), len(line)) <= 80


def test_another_metric_is_listed_when_asked_for(comparisons, capsys):
    assert main(["history", "--metric", "peak memory"]) == 0
    (_, line) = capsys.readouterr().out.splitlines()
    assert "peak memory" in line
    assert "4 KiB" in line


def test_programs_get_every_metric(comparisons, capsys):
    (found,) = as_json(capsys)["series"]
    assert {"latency", "time ratio", "energy"} < {each["metric"] for each in found["metrics"]}


def test_series_are_listed_as_json(records, path, capsys):
    result = as_json(capsys)
    assert result["store"] == str(path)
    assert [each["name"] for each in result["series"]] == ["gpt", "mlp"]
    assert result["series"][0]["count"] == 20
    assert result["more"] is False
    assert as_json(capsys, "--limit", "1")["more"] is True


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(["--metric", "accuracy"], ["mlp"]), (["--kind", "measurement"], ["gpt", "mlp"])],
)
def test_the_list_can_be_narrowed(records, capsys, arguments, names):
    assert [each["name"] for each in as_json(capsys, *arguments)["series"]] == names


def test_a_filter_without_a_hit_is_named(records, capsys):
    assert main(["history", "--kind", "tset"]) == 0
    assert "No records with kind 'tset'" in capsys.readouterr().out


def test_a_trend_is_shown_with_its_change(records, capsys):
    assert main(["history", "gpt", "--limit", "3", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "●" in shown
    assert "2.00 ms to 3.00 ms (1.50x)" in shown


def test_a_trend_as_json_has_all_points_and_changes(records, capsys):
    (found,) = as_json(capsys, "gpt", "--limit", "3")["trends"]
    assert len(found["points"]) == 20
    assert [change["index"] for change in found["change_points"]] == [10]


def test_an_unknown_name_or_metric_is_wrong_usage(records, capsys):
    assert main(["history", "gpr"]) == 2
    assert "did you mean 'gpt'?" in capsys.readouterr().err
    assert main(["history", "gpt", "--metric", "energy"]) == 2
    assert "'gpt' has no metric 'energy'; there are: latency" in capsys.readouterr().err


def test_a_record_is_shown_in_full(records, capsys):
    assert main(["history", "--show", records[0].hash[:10]]) == 0
    assert records[0].hash in capsys.readouterr().out
    shown = as_json(capsys, "--show", records[0].hash)
    assert Record.from_dict(shown["record"]) == records[0]


def test_a_good_store_passes_the_check(records, capsys):
    assert main(["history", "--check"]) == 0
    assert "21 records, all hashes match." in capsys.readouterr().out
    assert as_json(capsys, "--check")["damaged"] == []


def test_a_damaged_record_fails_the_check_and_is_named_elsewhere(records, path, capsys):
    damage(path)
    result = as_json(capsys, "--check", code=1)
    (found,) = result["damaged"]
    assert found["hash"] == records[2].hash
    assert main(["history", "--check"]) == 1
    assert "21 records, 1 problem." in capsys.readouterr().out
    assert main(["history", "gpt"]) == 0
    assert "1 damaged record skipped" in capsys.readouterr().err


def test_a_store_goes_from_one_file_to_another(records, tmp_path, capsys):
    lines, other = str(tmp_path / "x.jsonl"), str(tmp_path / "other.sqlite")
    assert as_json(capsys, "--export", lines)["exported"] == 21
    result = as_json(capsys, "--store", other, "--import", lines)
    assert (result["added"], result["known"], result["refused"]) == (21, 0, [])
    assert main(["history", "--store", other, "--import", lines]) == 0
    assert "0 records added, 21 known already, 0 refused." in capsys.readouterr().out
    with RecordStore(other) as store:
        assert set(store.find()) == set(records)


def test_one_name_can_be_exported(records, tmp_path, capsys):
    assert main(["history", "mlp", "--export", str(tmp_path / "x.jsonl")]) == 0
    assert "1 record written" in capsys.readouterr().out


def test_an_export_without_the_damaged_ones_is_no_success(records, path, tmp_path, capsys):
    damage(path)
    result = as_json(capsys, "--export", str(tmp_path / "x.jsonl"), code=1)
    assert result["exported"] == 20
    assert len(result["damaged"]) == 1


def test_refused_lines_are_shown_and_fail(path, tmp_path, capsys):
    good = json.dumps(record().to_dict())
    (tmp_path / "x.jsonl").write_text("\n".join(["{}"] * 7 + [good]))
    assert main(["history", "--import", str(tmp_path / "x.jsonl")]) == 1
    shown = capsys.readouterr()
    assert "1 record added, 0 known already, 7 refused." in shown.out
    assert "x.jsonl, 1: Record.schema" in shown.err
    assert "and 2 more; --json lists all" in shown.err
    refused = as_json(capsys, "--import", str(tmp_path / "x.jsonl"), code=1)["refused"]
    assert [each["line"] for each in refused] == [1, 2, 3, 4, 5, 6, 7]


def test_results_of_pytest_benchmark_are_imported(path, tmp_path, capsys):
    entry = {"fullname": "t.py::test_a", "stats": {"data": [0.1, 0.2]}}
    contents = {"machine_info": {}, "benchmarks": [entry], "datetime": "2026-05-01T12:00:00"}
    (tmp_path / "b.json").write_text(json.dumps(contents))
    assert main(["history", "--import", str(tmp_path / "b.json")]) == 0
    assert "1 record added" in capsys.readouterr().out
    (found,) = as_json(capsys, "t.py::test_a")["trends"]
    assert found["machine"].startswith("pytest-benchmark-")


def test_a_broken_store_is_one_line_of_error(path, capsys):
    path.write_text("no database" * 100)
    assert main(["history"]) == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "is no database" in message


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_limit_is_a_positive_number(limit, capsys):
    assert main(["history", f"--limit={limit}"]) == 2
    assert "is not a positive integer" in capsys.readouterr().err


def test_two_actions_at_once_are_refused(capsys):
    assert main(["history", "--check", "--show", "abcd"]) == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("arguments", [["mlp"], []])
def test_a_report_of_trends_is_written(capsys, tmp_path, arguments):
    file = tmp_path / "history.html"
    assert main(["history", *arguments, "--html", str(file)]) == 0
    assert f"wrote {file}" in capsys.readouterr().err
    assert "accuracy" in file.read_text("utf-8")


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--open"], "--open shows the report that --html FILE writes"),
        (["--check", "--html", "x.html"], "combined with --check"),
        (["--import", "x", "--html", "x.html"], "combined with --import"),
    ],
)
def test_a_report_of_what_is_no_trend_is_refused(capsys, arguments, message):
    assert main(["history", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("path")
def test_a_report_of_nothing_is_not_written(capsys, tmp_path):
    assert main(["history", "--html", str(tmp_path / "x.html")]) == 0
    captured = capsys.readouterr()
    assert "No records yet" in captured.out
    assert "x.html was not written" in captured.err
    assert not (tmp_path / "x.html").exists()
