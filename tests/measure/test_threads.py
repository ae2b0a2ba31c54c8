import sys
from types import SimpleNamespace

import pytest

from tinytorch.measure import environment as threads
from tinytorch.measure.environment import LIMITS, blas_threads, thread_limit, threads_in_force


@pytest.fixture(autouse=True)
def four_cores_and_no_settings(monkeypatch):
    for names in threads.BLAS_VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def torch_threads(monkeypatch):
    """Give a function that makes a torch with so many threads look imported."""

    def set_threads(count):
        torch = SimpleNamespace(get_num_threads=lambda: count)
        monkeypatch.setitem(sys.modules, "torch", torch)

    return set_threads


def test_without_settings_every_usable_core_is_used():
    assert blas_threads("scipy-openblas 0.3") == threads_in_force("scipy-openblas 0.3") == 4


@pytest.mark.parametrize(
    ("blas", "variable", "expected"),
    [
        ("scipy-openblas 0.3", "OPENBLAS_NUM_THREADS", 2),
        ("scipy-openblas 0.3", "OMP_NUM_THREADS", 2),
        ("scipy-openblas 0.3", "MKL_NUM_THREADS", 4),  # another library's
        ("mkl-dynamic-lp64-seq 2024", "MKL_NUM_THREADS", 2),
        ("blis 1.0", "BLIS_NUM_THREADS", 2),
        ("accelerate unknown", "VECLIB_MAXIMUM_THREADS", 2),
        (None, "OMP_NUM_THREADS", 2),
    ],
)
def test_a_library_reads_its_own_variables(monkeypatch, blas, variable, expected):
    monkeypatch.setenv(variable, "2")
    assert threads_in_force(blas) == expected


def test_the_librarys_own_variable_comes_first(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert blas_threads("openblas") == 3


@pytest.mark.parametrize(
    ("value", "expected"), [("3,2", 3), (" 2 ", 2), ("", 4), ("many", 4), ("0", 4), ("99", 4)]
)
def test_values_are_read_as_the_libraries_do(monkeypatch, value, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert blas_threads("openblas") == expected


def test_once_torch_is_imported_its_number_decides(monkeypatch, torch_threads):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    torch_threads(1)
    assert threads_in_force("openblas") == 1
    torch_threads(99)
    assert threads_in_force("openblas") == 4


def test_a_torch_that_is_still_being_imported_says_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert threads_in_force("openblas") == 4


@pytest.mark.parametrize(
    ("settings", "present", "limit"),
    [
        ({}, 8, 4),  # the cores
        ({}, 2, 2),  # what torch was told
        ({"OMP_NUM_THREADS": "1"}, 4, 1),
        ({"MKL_NUM_THREADS": "3"}, 4, 3),
        ({"OMP_NUM_THREADS": "2,1", "OMP_THREAD_LIMIT": "3"}, 4, 2),
        ({"OMP_NUM_THREADS": ""}, 4, 4),
    ],
)
def test_the_smallest_number_that_somebody_set_is_the_limit(monkeypatch, settings, present, limit):
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert thread_limit(present) == limit
