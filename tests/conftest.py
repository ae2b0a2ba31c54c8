"""What every test may use."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest

from tinytorch.core import dispatch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core; threads that wait for each other on it would take many times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test depends on how fast the machine is, or on luck.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def _compute_with_numpy() -> Iterator[None]:
    """Use the backend that is there everywhere and compiles nothing; others are asked for."""
    dispatch.set_backend("numpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYTORCH_BACKEND", "numpy")  # for the processes that tests start
        yield


@pytest.fixture(scope="session", autouse=True)
def _measure_this_machine_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep ceilings and records in folders of this run: measured for real, nobody's are touched.

    Workers of one run share what they measure of the machine.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYTORCH_CACHE", str(folder / "cache"))
        records = tmp_path_factory.mktemp("records") / "records.sqlite"
        patch.setenv("TINYTORCH_RECORDS", str(records))
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Keep what was made so far out of the collector, which every measurement runs first."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a generator that draws the same numbers in every run."""
    return np.random.default_rng(20260)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """Give a running server of PostgreSQL."""
    from parts import require_postgres
    from postgres_server import PostgresServer

    server = PostgresServer(require_postgres())
    yield server
    server.stop()


@pytest.fixture
def database(postgres: Any) -> str:
    """Give the URL of an empty database of PostgreSQL."""
    return postgres.address(postgres.new_database())
