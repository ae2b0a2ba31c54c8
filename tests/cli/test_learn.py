import json

import pytest

from tinytorch.cli.main import main
from tinytorch.learning.sources import existing_labs, load_lab, to_notebook, to_percent

HANDED_OUT = "    raise NotImplementedError"
ROOFLINE = """
def roofline(flops, bytes_moved, seconds, peak, bandwidth):
    intensity = flops / bytes_moved
    attainable = min(peak, bandwidth * intensity)
    bound = "memory" if intensity < peak / bandwidth else "compute"
    found = {"intensity": intensity, "attainable": attainable, "bound": bound}
    return {**found, "efficiency": flops / seconds / ROOF}
"""
RIGHT, WRONG = ROOFLINE.replace("ROOF", "attainable"), ROOFLINE.replace("ROOF", "peak")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Give ``run(*words) -> (code, result)`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        code = main(["learn", *words, "--json", "--quiet"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return run


@pytest.fixture
def started(run, tmp_path):
    """Start the lab on profiling; give its Python file."""
    assert run("start", "profiling", "--name", "Ada")[0] == 0
    return tmp_path / "profiling" / "profiling.py"


def write_roofline(file, text):
    file.write_text(file.read_text("utf-8") + text, "utf-8")


def test_labs_are_listed_before_and_after_a_start(run):
    _, found = run()
    assert [each["name"] for each in found["labs"]] == list(existing_labs())
    assert [each["progress"] for each in found["labs"]] == [None] * len(existing_labs())
    run("start", "profiling")
    (lab,) = [each for each in run()[1]["labs"] if each["name"] == "profiling"]
    assert (lab["folder"], lab["progress"]["steps"]) == ("profiling", {})


def test_start_writes_a_file_and_a_notebook(started):
    lab = load_lab("profiling").handed_out()
    assert started.read_text("utf-8") == to_percent(lab)
    assert started.with_suffix(".ipynb").read_text("utf-8") == to_notebook(lab)


def test_start_refuses_a_folder_in_use_and_force_keeps_what_was_there(run, started):
    started.write_text("mine = 1\n", "utf-8")
    assert run("start", "profiling")[0] == 2
    assert started.read_text("utf-8") == "mine = 1\n"
    assert run("start", "profiling", "--force")[0] == 0
    assert started.with_name("profiling.before-1.py").read_text("utf-8") == "mine = 1\n"


def test_an_unknown_lab_or_step_is_wrong_usage(run, started, capsys):
    assert run("start", "profilling")[0] == 2
    assert main(["learn", "check", "timerr"]) == 2
    assert "'timer'" in capsys.readouterr().err


def test_a_folder_without_a_lab_is_wrong_usage(run):
    assert run("check")[0] == 2
    assert run("check", "timer")[0] == 2


def test_a_step_that_was_not_written_fails_and_is_no_try(run, started):
    code, found = run("check", "roofline")
    assert (code, found["passed"]) == (1, False)
    (check,) = found["steps"][0]["checks"]
    assert check["code"] == "not-written"
    assert run("solution", "roofline")[0] == 2


def test_a_wrong_step_gets_a_hint_then_its_solution(run, started):
    write_roofline(started, WRONG)
    code, found = run("check", "roofline")
    assert code == 1
    assert [each["code"] for each in found["steps"][0]["checks"]] == ["", "peak-for-attainable"]
    code, shown = run("solution", "roofline")
    assert code == 0
    assert "def roofline" in shown["solution"]
    (lab,) = [each for each in run("progress")[1]["labs"] if each["progress"]]
    step = lab["progress"]["steps"]["roofline"]
    assert (step["tries"], step["failed"], step["passed"]) == (1, 1, False)
    assert step["solution_at"] is not None


def test_a_right_step_passes_and_is_remembered(run, started, monkeypatch):
    write_roofline(started, RIGHT)
    monkeypatch.chdir(started.parent)  # where a learner works
    code, found = run("check", "roofline", "--seed", "7")
    assert (code, found["seed"], found["passed"]) == (0, 7, True)
    (lab,) = [each for each in run()[1]["labs"] if each["progress"]]
    assert lab["progress"]["steps"]["roofline"]["passed"] is True


def test_all_steps_are_checked_without_a_name(run, started):
    write_roofline(started, RIGHT)
    code, found = run("check")
    assert code == 1
    passed = {each["name"]: each["passed"] for each in found["steps"]}
    assert passed.pop("roofline") is True
    assert not any(passed.values())
    assert run("check", "profiling")[0] == 1


def test_cases_are_new_each_time_unless_a_seed_is_given(run, started):
    seeds = {run("check", "roofline")[1]["seed"] for _ in range(2)}
    assert len(seeds) == 2
    assert run("check", "roofline", "--seed", "3")[1]["seed"] == 3


def test_the_notebook_is_checked_where_that_was_changed(run, started):
    notebook = started.with_suffix(".ipynb")
    content = json.loads(notebook.read_text("utf-8"))
    cell = {"cell_type": "code", "id": "x", "metadata": {}, "source": [RIGHT], "outputs": []}
    content["cells"].append({**cell, "execution_count": None})
    notebook.write_text(json.dumps(content), "utf-8")
    code, found = run("check", "roofline")
    assert (code, found["file"]) == (0, str(notebook.relative_to(notebook.parent.parent)))


def test_the_solution_can_be_seen_anyway(run, started):
    assert run("solution", "timer")[0] == 2
    assert run("solution", "timer", "--anyway")[0] == 0
    assert run("solution", "reflection")[0] == 2
    assert "median" in run("solution", "reflection", "--anyway")[1]["solution"]


def test_a_loop_without_end_is_stopped(run, started):
    write_roofline(started, "\ndef roofline(*_, **__):\n    while True: pass\n")
    code, found = run("check", "roofline", "--limit", "3")
    assert (code, found["steps"][0]["checks"][0]["code"]) == (1, "timed-out")


def test_code_that_ends_its_process_is_told(run, started):
    write_roofline(started, "\nimport os\n\ndef roofline(*_, **__):\n    os._exit(3)\n")
    code, found = run("check", "roofline")
    assert (code, found["steps"][0]["checks"][0]["code"]) == (1, "crashed")


def test_too_much_memory_is_told(run, started):
    write_roofline(started, "\ndef roofline(*_, **__):\n    return np.ones(1 << 40)\n")
    code, found = run("check", "roofline")
    assert code == 1
    assert found["steps"][0]["checks"][0]["code"] == "out-of-memory"


def test_code_that_exits_is_told_where(run, started):
    write_roofline(started, "\ndef roofline(*_, **__):\n    raise SystemExit\n")
    code, found = run("check", "roofline")
    (check,) = found["steps"][0]["checks"]
    assert (code, check["code"]) == (1, "raised")
    assert "profiling.py" in check["words"]


def test_a_file_that_is_no_text_is_wrong_usage_or_told(run, started):
    started.write_bytes(b"\x00\xff")
    assert run("check", "roofline")[0] in (1, 2)


def test_progress_that_cannot_be_kept_comes_after_the_result(run, started, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tinytorch.learning.progress.write_atomically", refuse)
    write_roofline(started, RIGHT)
    code, found = run("check", "roofline")
    assert (code, found["passed"]) == (2, True)


def test_a_file_of_the_same_name_beside_a_lab_does_no_harm(run, started, tmp_path):
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "progress.json").write_text("{", "utf-8")
    assert run()[0] == 0
    (started.parent / "progress.json").write_text("{", "utf-8")
    assert main(["learn", "progress", "--in", "profiling"]) != 0


def test_what_cannot_be_read_has_a_row_of_its_own(run, started, tmp_path):
    broken = tmp_path / "Bob" / "profiling"
    broken.mkdir(parents=True)
    (broken / "progress.json").write_text("{", "utf-8")
    code, found = run("export", str(tmp_path), "--csv", "labs.csv")
    assert code == 0
    assert {row["team"]: row["status"] for row in found["rows"]} == {
        "Ada": "as handed in",
        "Bob": "cannot be read",
    }


def test_labs_of_a_learner_without_a_name_are_those_of_one(run, tmp_path, monkeypatch):
    (tmp_path / "class" / "Eve").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "class" / "Eve")
    for lab in ("profiling", "caching"):
        assert run("start", lab)[0] == 0
    _, found = run("export", ".", "--csv", "labs.csv")
    assert [(row["team"], row["event"]) for row in found["rows"]] == [
        ("Eve", "caching"),
        ("Eve", "profiling"),
    ]


def test_instructors_get_a_row_for_each_learner_and_lab(run, started, tmp_path):
    write_roofline(started, RIGHT)
    run("check")
    code, found = run("export", str(tmp_path), "--csv", "labs.csv")
    (row,) = found["rows"]
    assert code == 0
    assert (row["team"], row["event"], row["passed"]) == ("Ada", "profiling", 1)
    assert row["points"] == round(100 / row["steps"], 1)
    assert "timer: not-written" in row["findings"]
    head, line = (tmp_path / "labs.csv").read_text("utf-8").splitlines()
    assert head.startswith("team,event,points,status,")
    assert line.startswith("Ada,profiling,14.3,as handed in,7,1,")


def test_export_can_check_again_what_was_handed_in(run, started, tmp_path):
    file = started.parent / "progress.json"
    write_roofline(started, WRONG)
    forged = {"lab": "profiling", "learner": "Eve", "steps": {"roofline": {"passed": True}}}
    file.write_text(json.dumps({"schema": 1, **forged}), "utf-8")
    rows = run("export", str(tmp_path), "--csv", "labs.csv")[1]["rows"]
    assert rows[0]["passed"] == 1
    rows = run("export", str(tmp_path), "--csv", "labs.csv", "--recheck")[1]["rows"]
    assert (rows[0]["passed"], rows[0]["status"]) == (0, "checked again")


def test_the_competition_s_grades_come_into_the_same_table(run, started, tmp_path):
    from tinytorch.competition.board_files import COLUMNS, csv_text

    grades = tmp_path / "grades.csv"
    row = {"team": "The Writers", "event": "mlp_sprint", "points": 50.0}
    grades.write_text(csv_text(COLUMNS, [row]), "utf-8", newline="")
    run("export", str(tmp_path), "--csv", "all.csv", "--grades", str(grades))
    lines = (tmp_path / "all.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["Ada", "profiling", "0.0"],
        ["The Writers", "mlp_sprint", "50.0"],
    ]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    words = ["export", str(tmp_path), "--csv", "all.csv", "--grades"]
    assert run(*words, str(tmp_path / "other.csv"))[0] == 2


def test_what_a_terminal_shows_leads_to_the_next_step(started, capsys, monkeypatch):
    monkeypatch.chdir(started.parent)
    write_roofline(started, WRONG)
    assert main(["learn", "check", "roofline", "--seed", "5"]) == 1
    told = capsys.readouterr().out
    assert "tinytorch learn check roofline --seed 5" in told
    assert "tinytorch learn solution roofline" in told
    assert main(["learn"]) == 0
    assert "0 of 7" in capsys.readouterr().out
