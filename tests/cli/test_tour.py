import dataclasses
import json

import pytest

from tinytorch.cli import tour as command
from tinytorch.cli.main import main
from tinytorch.workloads import tour, train


@pytest.fixture(scope="module")
def short_tour():
    """Take the real tour once, in seconds: fewer steps, and smaller ones for gpt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tour, "STEPS", {"mlp": 60, "cnn": 40, "gpt": 100})
        patch.setattr(tour, "TEXT_WINDOWS", 10)
        smaller = dataclasses.replace(train.RECIPES["gpt"], batch_size=8)
        patch.setitem(train.RECIPES, "gpt", smaller)
        return tour.take_tour(seed=3)


@pytest.fixture
def tour_is(monkeypatch):
    def use(result):
        monkeypatch.setattr(command, "take_tour", lambda seed, watch: result)

    return use


@pytest.mark.slow
def test_the_tour_shows_every_model(capsys, short_tour, tour_is):
    tour_is(short_tour)
    assert main(["tour"]) == 0
    shown = capsys.readouterr()
    assert all(f"\n{name} " in shown.out for name in ("mlp", "cnn", "gpt"))
    assert "Everything works" in shown.out
    assert "about a minute" in shown.err


@pytest.mark.slow
def test_the_tour_speaks_json_and_quiet_leaves_stderr_alone(capsys, short_tour, tour_is):
    tour_is(short_tour)
    assert main(["tour", "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert shown.err == ""
    assert result["command"] == "tour"
    assert result["works"] is True
    assert [len(model["losses"]) for model in result["models"]] == [60, 40, 100]
    assert set(result["digits"][0]) == {"label", "predicted", "probability"}


@pytest.mark.slow
def test_a_tour_that_fails_says_so_in_its_exit_code(capsys, short_tour, tour_is):
    useless = dataclasses.replace(short_tour.models[0], fresh_score=0.0)
    tour_is(dataclasses.replace(short_tour, models=(useless,)))
    assert main(["tour", "--quiet"]) == 1
    assert "Something is wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_tour_works(capsys):
    assert main(["tour", "--seed", "1"]) == 0
    assert "Everything works" in capsys.readouterr().out
