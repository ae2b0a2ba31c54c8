import json
from dataclasses import replace

import pytest
from example_boards import accuracy, entry
from example_boards import judgement as imaginary_judgement
from parts import hide_package, require_part

from tinytorch.cli.main import main
from tinytorch.competition import judge as judging
from tinytorch.competition.entry import read_entry, write_entry
from tinytorch.competition.rounds import read_round
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run
from tinytorch.competition.signing import new_key, sign_record
from tinytorch.competition.verification import read_folder

RAN_AT = "2026-03-01T10:00:00Z"
# Questions of a run that broke a rule are not drawn again, which would take a second.
BROKEN_OFF = (finding("T3", "kept"),)


def judgement(speedup=2.0, **changes):
    """Give a judgement whose accuracy has the margin of its tier."""
    return imaginary_judgement(speedup, accuracy=accuracy(margin=0.01 * 0.95), **changes)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give a submitted entry with one run, and a round in the same folder of submissions."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "submissions" / "mlp_sprint" / "ada" / "one"
    made.mkdir(parents=True)
    write_entry(entry(), made)
    entered = read_entry(made)
    keep_run(replace(judgement(), entry=entered, created_at=RAN_AT, findings=BROKEN_OFF), made)
    assert main(["compete", "round", "new", "spring", "--to", "submissions"]) == 0
    return made


@pytest.fixture
def judge_gives(monkeypatch):
    """Let the judge give what a test says, and keep what it was asked."""
    asked = {}

    def use(**changes):
        def judge(entered, *, round, **others):
            asked.update(others, round=round)
            seen = judgement(**changes)
            name, commitment = round.name, round.commitment
            now = "2026-03-02T10:00:00Z"
            named = replace(seen, round_name=name, commitment=commitment, created_at=now)
            return replace(named, entry=entered)

        monkeypatch.setattr(judging, "judge", judge)
        return asked

    return use


def test_records_that_were_not_changed_pass(folder, capsys):
    assert main(["compete", "verify", "submissions"]) == 0
    shown = capsys.readouterr().out
    assert "1 run (1 unverified)" in shown
    assert "No rule violations found" in shown


def test_a_changed_record_is_found_and_named(folder, capsys):
    (file,) = (folder / "results").glob("*.json")
    file.write_text(file.read_text("utf-8").replace('"division":"closed"', '"division":"open"'))
    assert main(["compete", "verify", "submissions", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    rows = {row["path"]: [each["rule"] for each in row["findings"]] for row in found["files"]}
    assert rows[f"mlp_sprint/ada/one/results/{file.name}"] == ["R1"]


def test_one_record_can_be_verified_alone(folder, capsys):
    (file,) = (folder / "results").glob("*.json")
    assert main(["compete", "verify", str(file)]) == 0
    assert "1 run" in capsys.readouterr().out


def test_an_entry_that_is_none_is_a_broken_rule_and_no_tampering(folder):
    (folder / "entry.json").write_text("{}", "utf-8")
    assert main(["compete", "verify", "submissions"]) == 1


def test_a_path_that_is_not_there_is_wrong_usage(folder, capsys):
    assert main(["compete", "verify", "nowhere"]) == 2
    assert "no file or folder nowhere" in capsys.readouterr().err


def test_a_rerun_asks_the_questions_of_the_round_and_keeps_a_verified_record(
    folder, judge_gives, capsys
):
    asked = judge_gives(speedup=2.0)
    arguments = ["--rerun", "--round", "spring.SECRET.json", "--heats", "8", "--no-ablations"]
    assert main(["compete", "verify", str(folder), *arguments]) == 0
    captured = capsys.readouterr()
    assert "faster" in captured.out
    assert "no valid run of the team to compare with" in captured.err
    assert asked["round"] == read_round("spring.SECRET.json")
    assert (asked["heats"], asked["ablations"], asked["trust"]) == (8, False, False)
    assert len(list((folder / "results").glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("measured", "again", "words"),
    [(2.0, 2.0, "and the intervals overlap"), (3.0, 2.0, "and the intervals do not overlap")],
)
def test_a_rerun_says_whether_it_fits_what_the_team_measured(
    folder, judge_gives, measured, again, words, capsys, monkeypatch
):
    from tinytorch.competition import verification as record_status

    monkeypatch.setattr(record_status, "_check_questions", lambda judgement, found: ())
    seen = replace(judgement(measured), entry=read_entry(folder), created_at=RAN_AT)
    keep_run(seen, folder)
    judge_gives(speedup=again)
    assert main(["compete", "verify", str(folder), "--rerun", "--round", "spring.SECRET.json"]) == 0
    assert words in capsys.readouterr().err


def test_what_was_changed_is_not_judged_again(folder, judge_gives, capsys):
    (file,) = (folder / "results").glob("*.json")
    file.write_text("{}", "utf-8")
    asked = judge_gives()
    assert main(["compete", "verify", str(folder), "--rerun", "--round", "spring.SECRET.json"]) == 4
    assert "not judged again" in capsys.readouterr().err
    assert asked == {}


def test_a_rerun_needs_a_round(folder, capsys):
    assert main(["compete", "verify", str(folder), "--rerun"]) == 2
    assert "--rerun needs --round" in capsys.readouterr().err


def test_an_interrupted_rerun_leaves_nothing(folder, monkeypatch, capsys):
    def judge(entered, **others):
        raise KeyboardInterrupt

    monkeypatch.setattr(judging, "judge", judge)
    again = ["--rerun", "--round", "spring.SECRET.json"]
    assert main(["compete", "verify", str(folder), *again]) == 130
    assert "nothing was stored" in capsys.readouterr().err
    assert len(list((folder / "results").glob("*.json"))) == 1


def test_a_rerun_in_a_round_whose_seed_is_not_known_is_refused(folder, judge_gives, capsys):
    judge_gives()
    public = str(folder.parents[2] / "rounds" / "spring.json")
    assert main(["compete", "verify", str(folder), "--rerun", "--round", public]) == 2
    assert "the organiser's secret file" in capsys.readouterr().err


def test_a_verified_run_counts_on_the_board(folder, judge_gives, monkeypatch, capsys):
    from tinytorch.competition import verification as record_status

    monkeypatch.setattr(record_status, "_check_questions", lambda judgement, found: ())
    judge_gives(speedup=2.0)
    monkeypatch.setattr("tinytorch.competition.rounds.utc_text", lambda moment: RAN_AT)
    assert main(["compete", "round", "new", "early", "--to", "submissions"]) == 0
    arguments = ["--rerun", "--round", "early.SECRET.json"]
    assert main(["compete", "verify", str(folder), *arguments]) == 0
    (run,) = (each for each in read_folder("submissions").records if each.is_verified)
    assert run.judgement.round_name == "early"


def test_a_round_with_a_key_needs_that_key(folder, judge_gives, capsys):
    require_part("cryptography")
    judge_gives()
    assert main(["compete", "key", "organiser.key"]) == 0
    arguments = ["compete", "round", "new", "signed", "--to", "submissions"]
    assert main([*arguments, "--key", "organiser.key"]) == 0
    again = ["compete", "verify", str(folder), "--rerun", "--round", "signed.SECRET.json"]
    assert main(again) == 2
    assert "give the key with --key" in capsys.readouterr().err
    assert main([*again, "--key", "organiser.key"]) == 0
    assert len(list((folder / "results").glob("*.sig"))) == 1


@pytest.mark.parametrize("has_rounds", [True, False])
def test_where_there_is_no_run_there_is_nothing_to_verify(folder, tmp_path, has_rounds, capsys):
    place = tmp_path / "empty"
    (place / "rounds" if has_rounds else place).mkdir(parents=True)
    assert main(["compete", "verify", str(place)]) == 2
    assert "no run to verify" in capsys.readouterr().err


def test_a_signature_that_was_not_checked_is_told_once_and_never_passed(
    folder, monkeypatch, capsys
):
    require_part("cryptography")
    key = new_key("organiser.key")
    for seed in (7, 8):
        seen = replace(judgement(seed=seed), entry=read_entry(folder), created_at=RAN_AT)
        sign_record(keep_run(replace(seen, findings=BROKEN_OFF), folder), key)
    hide_package(monkeypatch, "cryptography")
    assert main(["compete", "verify", "submissions"]) == 3
    shown = capsys.readouterr().out
    assert "3 runs (2 signature not checked, 1 unverified)" in " ".join(shown.split())
    assert shown.count("[sign]") == 1
    assert "sign again" not in shown
