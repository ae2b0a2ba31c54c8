import argparse

import pytest

from tinytorch.cli.options import add_common_options


def nested_parser():
    outer = argparse.ArgumentParser()
    add_common_options(outer)
    inner = outer.add_subparsers(dest="action").add_parser("act")
    add_common_options(inner, is_inner=True)
    return outer


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "--quiet", "--seed", "7", "act"],
        ["act", "--json", "--quiet", "--seed", "7"],
        ["--json", "act", "--quiet", "--seed", "7"],
    ],
)
def test_options_stand_before_and_after_the_name_of_an_action(words):
    options = nested_parser().parse_args(words)
    assert (options.json, options.quiet, options.seed) == (True, True, 7)


def test_without_options_the_defaults_hold():
    options = nested_parser().parse_args(["act"])
    assert (options.json, options.quiet, options.seed) == (False, False, 0)


@pytest.mark.parametrize("seed", ["-1", "1.5", "x"])
def test_a_seed_is_a_whole_number_in_an_action_too(seed, capsys):
    with pytest.raises(SystemExit, match="2"):
        nested_parser().parse_args(["act", f"--seed={seed}"])
    assert "argument --seed" in capsys.readouterr().err
