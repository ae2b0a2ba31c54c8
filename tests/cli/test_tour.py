import json

import pytest

from tinytorch.cli.main import main
from tinytorch.workloads import tour


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    monkeypatch.setattr(tour, "STEPS", {"mlp": 40, "cnn": 20, "gpt": 10})
    monkeypatch.setattr(tour, "TEXT_WINDOWS", 10)


def test_the_tour_shows_every_model(capsys):
    assert main(["tour"]) == 0
    shown = capsys.readouterr()
    assert all(f"\n{name} " in shown.out for name in ("mlp", "cnn", "gpt"))
    assert "Everything works" in shown.out
    assert "about a minute" in shown.err


def test_the_tour_speaks_json_and_quiet_leaves_stderr_alone(capsys):
    assert main(["tour", "--json", "--quiet", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert shown.err == ""
    assert result["command"] == "tour"
    assert result["seed"] == 3
    assert [len(model["losses"]) for model in result["models"]] == [40, 20, 10]
    assert set(result["digits"][0]) == {"label", "predicted", "probability"}


def test_a_tour_that_fails_says_so_in_its_exit_code(capsys, monkeypatch):
    monkeypatch.setattr(tour, "_score_without_learning", lambda name, held_out: 1.0)
    assert main(["tour", "--quiet"]) == 1
    assert "Something is wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_tour_works(capsys, monkeypatch):
    monkeypatch.undo()
    assert main(["tour"]) == 0
    assert "Everything works" in capsys.readouterr().out
