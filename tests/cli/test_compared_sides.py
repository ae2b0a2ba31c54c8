import argparse

import pytest

from tinytorch.cli.compare import (
    add_environments,
    are_isolated,
    as_side,
    chosen_sides,
    described,
)
from tinytorch.comparison.processes import Isolated
from tinytorch.errors import SettingError, TargetError


def options_of(words, timeout=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    add_environments(parser.add_argument_group("environments"))
    options = parser.parse_args(words.split())
    options.timeout = timeout
    return options


def test_sides_in_one_process_are_their_targets():
    options = options_of("mlp cnn")
    assert not are_isolated(options)
    assert [as_side(options, each) for each in chosen_sides(options)] == ["mlp", "cnn"]


@pytest.mark.parametrize(
    "words", ["mlp cnn --isolate", "mlp --candidate-env A=1", "mlp --baseline-python python3"]
)
def test_an_environment_isolates(words):
    assert are_isolated(options_of(words))


def test_an_isolated_side_has_its_environment_and_the_patience_asked_for(tmp_path):
    options = options_of(f"mlp --baseline-folder {tmp_path} --candidate-env A=1", timeout=9.0)
    assert [as_side(options, each) for each in chosen_sides(options)] == [
        Isolated("mlp", folder=str(tmp_path), timeout_s=9.0),
        Isolated("mlp", variables={"A": "1"}, timeout_s=9.0),
    ]


def test_a_side_is_described_by_what_was_asked_for():
    side = {"target": "mlp", "python": "python3", "variables": {"A": "1"}}
    assert described(side) == "mlp, python3, A=1"


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("", SettingError, "0 targets"),
        ("mlp", SettingError, "one target, mlp"),
        ("mlp --baseline-folder no-such-folder", SettingError, "there is no folder no-such"),
        ("no.py:x mlp --isolate", TargetError, "there is no file no.py"),
        ("mpl mlp --isolate", TargetError, "did you mean 'mlp'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(words, error, message):
    with pytest.raises(error, match=message):
        chosen_sides(options_of(words))
