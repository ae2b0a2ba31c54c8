"""TinyMLPerfCompetition: enter a Python object, and look at the boards."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted_models import ScriptedClock, ScriptedModel

from tinytorch.competition import classic as module
from tinytorch.competition import heats as heats_module
from tinytorch.competition.classic import TinyMLPerfCompetition
from tinytorch.competition.events import find_event
from tinytorch.competition.rounds import PRACTICE
from tinytorch.competition.verification import read_folder
from tinytorch.errors import SettingError
from tinytorch.models.zoo import build_mlp, load_zoo
from tinytorch.transforms.quantize.classic import quantize_model

SLOW_REFERENCE_S = 3.0


@pytest.fixture
def scripted(monkeypatch):
    """Let the reference take three seconds a call, ask few questions, and spare the warm-up."""
    reference = SimpleNamespace(model=ScriptedModel(SLOW_REFERENCE_S))
    monkeypatch.setattr(module, "load_zoo", lambda name: reference)
    monkeypatch.setattr(module, "perf_counter", ScriptedClock.read)
    monkeypatch.setattr(ScriptedClock, "now", 0.0)
    monkeypatch.setitem(heats_module.WARM_UP_EXAMPLES, "mlp_sprint", 2)
    monkeypatch.setattr(module, "find_event", lambda name: replace(find_event(name), examples=100))


@pytest.fixture
def competition(scripted):
    return TinyMLPerfCompetition(heats=6)


def printed(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_an_entry_is_scored_and_kept_as_unverified(competition):
    found = competition.submit_entry(
        "Team Ada", "mlp_sprint", ScriptedModel(1.0), "fewer layers", "https://example.org/ada"
    )
    assert found["speedup_score"] == pytest.approx(3)
    assert found["verdict"] == "faster"
    assert found["is_ranked"]
    assert (found["team_name"], found["event_name"]) == ("Team Ada", "mlp_sprint")
    assert found["optimization_description"] == "fewer layers"
    assert found["github_url"] == "https://example.org/ada"
    assert found["accuracy"] == found["reference_accuracy"] > 0.9
    (run,) = competition.runs
    assert run.status == found["status"] == "unverified"
    assert run.judgement is found["judgement"]


def test_the_boards_are_printed_and_nothing_is_given(competition, capsys):
    competition.submit_entry("Team Ada", "mlp_sprint", ScriptedModel(1.0))
    shows = (
        competition.display_leaderboard,
        competition.display_innovation_leaderboard,
        competition.display_composite_leaderboard,
    )
    for show, word in zip(shows, ("speed", "innovation", "composite"), strict=True):
        assert show("mlp_sprint") is None
        text = printed(capsys)
        assert "Team Ada" in text
        assert word in text
        assert "not affiliated with MLCommons" in text


def test_the_faster_one_comes_first_in_whichever_order_they_came(competition):
    competition.submit_entry("Slow", "mlp_sprint", ScriptedModel(2.0))
    competition.submit_entry("Fast", "mlp_sprint", ScriptedModel(1.0))
    (contest,) = competition.board.contests
    assert [place.standing.team for place in contest.unverified.speed] == ["Fast", "Slow"]


def test_an_inaccurate_model_is_never_ranked_by_its_speed(competition, capsys):
    found = competition.submit_entry("Quick", "mlp_sprint", ScriptedModel(1e-6, build_mlp(0)))
    assert not found["is_ranked"]
    assert found["speedup_score"] is None
    assert found["findings"][0].startswith("A2: accuracy")
    competition.display_leaderboard("mlp_sprint")
    text = printed(capsys)
    assert "not ranked" in text
    assert "it breaks A2" in text


def test_a_broken_model_is_kept_with_the_reason(competition):
    def forward(x):
        raise ValueError("no weights")

    found = competition.submit_entry("Broken", "mlp_sprint", forward)
    assert not found["is_ranked"]
    assert found["accuracy"] is None
    assert "no weights" in found["findings"][0]
    assert len(competition.runs) == 1


def test_innovation_is_measured_by_leaving_a_technique_out(competition):
    competition.submit_entry(
        "Team Ada", "mlp_sprint", ScriptedModel(1.0), without={"trick": ScriptedModel(2.0)}
    )
    (contest,) = competition.board.contests
    (place,) = contest.unverified.innovation
    assert place.score.value > 1


def test_questions_are_new_for_every_entry(competition):
    for _ in range(2):
        competition.submit_entry("Team Ada", "mlp_sprint", ScriptedModel(1.0))
    one, two = (run.judgement for run in competition.runs)
    assert one.data_sha256 != two.data_sha256
    assert one.entry.sha256 != two.entry.sha256


def test_a_folder_keeps_runs_for_the_next_competition(scripted, tmp_path):
    folder = tmp_path / "submissions"
    first = TinyMLPerfCompetition(folder, heats=6)
    first.submit_entry("Team Ada", "mlp_sprint", ScriptedModel(1.0))
    kept = read_folder(folder)
    assert [run.judgement.entry.team for run in kept.records] == ["Team Ada"]
    assert [run.status for run in kept.records] == ["unverified"]
    assert not kept.damaged
    assert [each.is_revealed for each in kept.rounds] == [True]
    second = TinyMLPerfCompetition(folder, heats=6)
    second.submit_entry("Team Bob", "mlp_sprint", ScriptedModel(2.0))
    (contest,) = second.board.contests
    teams = [place.standing.team for place in contest.unverified.speed]
    assert teams == ["Team Ada", "Team Bob"]


@pytest.mark.parametrize("folder", [None, "submissions"])
def test_rounds_of_single_entries_are_not_displayed(scripted, tmp_path, capsys, folder):
    competition = TinyMLPerfCompetition(folder and tmp_path / folder, heats=6)
    competition.submit_entry("Team Ada", "mlp_sprint", ScriptedModel(1.0))
    competition.rounds.append(PRACTICE)
    competition.display_leaderboard("mlp_sprint")
    text = printed(capsys)
    assert "Team Ada" in text
    assert "practice" in text
    assert "local-" not in text
    assert len(competition.board.rounds) == 2


@pytest.mark.parametrize(
    ("heats", "words"),
    [(2, "heats=2; the interval of a speedup needs at least 6"), (7.5, "must be a whole number")],
)
def test_too_few_heats_are_refused_at_once(heats, words):
    with pytest.raises(SettingError, match=words):
        TinyMLPerfCompetition(heats=heats)


def test_a_new_folder_has_an_empty_board(tmp_path, capsys):
    TinyMLPerfCompetition(tmp_path / "none").display_leaderboard("mlp_sprint")
    assert "No runs of MLP Sprint yet" in printed(capsys)
    assert not (tmp_path / "none").exists()


def test_wrong_settings_are_refused_before_anything_is_measured():
    competition = TinyMLPerfCompetition()
    with pytest.raises(SettingError, match="no event 'mlp'"):
        competition.submit_entry("Team Ada", "mlp", None)
    with pytest.raises(SettingError, match="team is"):
        competition.submit_entry("", "mlp_sprint", None)
    with pytest.raises(SettingError, match="url is"):
        competition.submit_entry("Team Ada", "mlp_sprint", None, github_url="javascript:x")
    with pytest.raises(SettingError, match="no event"):
        competition.display_leaderboard("mlp")
    assert competition.runs == []


@pytest.mark.slow
@pytest.mark.parametrize("event", ["mlp_sprint", "cnn_marathon", "transformer_decathlon"])
def test_the_reference_itself_is_valid_in_every_event(event):
    competition = TinyMLPerfCompetition(heats=6)
    found = competition.submit_entry("Nobody", event, load_zoo(find_event(event).model).model)
    assert found["findings"] == []
    assert found["is_ranked"]
    assert found["accuracy"] == found["reference_accuracy"]


@pytest.mark.slow
def test_a_quantized_model_keeps_its_accuracy():
    workload = load_zoo("mlp")
    quantized = quantize_model(workload.model, workload.calibration)
    found = TinyMLPerfCompetition(heats=6).submit_entry("Int8", "mlp_sprint", quantized)
    assert found["findings"] == []
    # Some 6 of 12,000 answers differ; what is lost and gained may cancel out.
    assert found["accuracy"] == pytest.approx(found["reference_accuracy"], abs=0.005)
