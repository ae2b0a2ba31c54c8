"""What a contender finds around it."""

from pathlib import Path

import pytest

from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.sandbox.contender_process import (
    bytes_of_code,
    environment_of,
    mounts_of,
)
from tinytorch.core.files import cache_folder
from tinytorch.models.zoo import WEIGHTS

REFERENCE = Contender("mlp_sprint")


@pytest.fixture
def coded(tmp_path: Path) -> Contender:
    home = tmp_path / "entry"
    (home / "results").mkdir(parents=True)
    (home / "model.py").write_text("make = None")
    (home / "table.txt").write_text("12345")
    (home / "results" / "run.json").write_text("{}")
    return Contender("mlp_sprint", code=f"{home / 'model.py'}:make")


def test_variables_of_ours_are_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_SEED", "42")
    found = environment_of(REFERENCE, tmp_path)
    assert "SECRET_SEED" not in found
    assert found["HOME"] == found["TMPDIR"] == str(tmp_path)
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["TINYTORCH_BACKEND"] == "numpy"


def test_code_has_no_cache_that_outlives_it(tmp_path: Path, coded: Contender) -> None:
    kept = str(cache_folder().resolve())
    assert environment_of(REFERENCE, tmp_path)["TINYTORCH_CACHE"] == kept
    assert environment_of(coded, tmp_path)["TINYTORCH_CACHE"] == str(tmp_path / "cache")
    assert kept not in mounts_of(coded, tmp_path).writable


def test_code_reads_its_own_files_and_no_earlier_runs(tmp_path: Path, coded: Contender) -> None:
    home = tmp_path / "entry"
    found = mounts_of(coded, tmp_path)
    assert {str(home / "model.py"), str(home / "table.txt")} <= set(found.readable)
    assert not any("results" in each for each in found.readable)


def test_the_reference_reads_the_program_alone(tmp_path: Path) -> None:
    found = mounts_of(REFERENCE, tmp_path)
    assert not any(str(tmp_path) in each for each in found.readable)


def test_code_weighs_its_files_and_the_weights_that_it_is_given(coded: Contender) -> None:
    weights = (WEIGHTS / "mlp.safetensors").stat().st_size
    assert bytes_of_code(coded) == weights + len("make = None") + len("12345")
