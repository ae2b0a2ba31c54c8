"""What a contender finds around it."""

from pathlib import Path

import pytest

from tinytorch.competition.cell.contender import USUAL_LIMITS, Contender, Limits
from tinytorch.competition.cell.contender_process import (
    ADDRESSES_BYTES,
    bytes_of_code,
    confinement_of,
    environment_of,
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
    assert kept not in confinement_of(coded, tmp_path, USUAL_LIMITS).writable


def test_code_reads_its_own_files_and_no_earlier_runs(tmp_path: Path, coded: Contender) -> None:
    home = tmp_path / "entry"
    found = confinement_of(coded, tmp_path, USUAL_LIMITS)
    assert {str(home / "model.py"), str(home / "table.txt")} <= set(found.readable)
    assert not any("results" in each for each in found.readable)
    assert found.listed == (str(home),)


def test_the_reference_reads_the_program_alone(tmp_path: Path) -> None:
    found = confinement_of(REFERENCE, tmp_path, USUAL_LIMITS)
    assert found.listed == ()
    assert not any(str(tmp_path) in each for each in found.readable)


def test_limits_are_handed_on(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=1 << 30, processes=2)
    found = confinement_of(REFERENCE, tmp_path, limits)
    assert found.address_space_bytes == (1 << 30) + ADDRESSES_BYTES
    assert found.may_start_processes


def test_code_weighs_its_files_and_the_weights_that_it_is_given(coded: Contender) -> None:
    weights = (WEIGHTS / "mlp.safetensors").stat().st_size
    assert bytes_of_code(coded) == weights + len("make = None") + len("12345")
