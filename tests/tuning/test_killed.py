"""What `tinytorch optimize` has kept survives kill -9; benchmarks/killed_optimize.py has more."""

import random
import sys

import pytest
from project_files import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import killed_optimize


@pytest.mark.slow
def test_a_killed_run_goes_on_and_recommends_the_same(tmp_path):
    wanted = killed_optimize.undisturbed(tmp_path, 3000)
    chance = random.Random(4)
    for number in range(2):
        loop = killed_optimize.one_loop(tmp_path / f"{number}.sqlite", 3000, chance)
        assert loop.is_fine(wanted), loop
