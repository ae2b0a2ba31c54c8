import dataclasses

import pytest

from tinytorch.core.kernels import BACKENDS, REFERENCE, Backend

SMALL = Backend("small", {"double": lambda x: 2 * x, "negate": lambda x: -x})


def test_an_extended_backend_replaces_some_kernels_and_inherits_the_rest():
    fast = SMALL.extended("fast", {"double": lambda x: x + x + 0.5})
    assert fast.name == "fast"
    assert fast.kernels["double"](1) == 2.5
    assert fast.kernels["negate"] is SMALL.kernels["negate"]


def test_the_original_stays_as_it_was():
    SMALL.extended("fast", {"double": lambda x: 0})
    assert SMALL.kernels["double"](4) == 8


def test_a_kernel_that_nobody_can_check_is_refused():
    with pytest.raises(AssertionError, match=r"fast has kernels that small lacks: \['triple'\]"):
        SMALL.extended("fast", {"triple": lambda x: 3 * x})


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_backend_cannot_be_changed(backend):
    with pytest.raises(TypeError):
        backend.kernels["add"] = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        backend.name = "other"


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_every_backend_has_every_kernel(backend):
    assert backend.kernels.keys() == REFERENCE.kernels.keys()
    assert all(callable(kernel) for kernel in backend.kernels.values())


def test_backends_are_found_by_their_names():
    assert all(backend.name == name for name, backend in BACKENDS.items())
    assert {"reference", "numpy"} <= BACKENDS.keys()
    assert len(BACKENDS) == len(list(BACKENDS))
    with pytest.raises(KeyError):
        BACKENDS["abacus"]
