import numpy as np
import pytest
from kernel_calls import IN_PLACE, kernel_calls
from oracles import VARIANTS, assert_close

from tinytorch.core.kernels import BACKENDS, NUMPY, REFERENCE

KINDS = sorted(REFERENCE.kernels)
CALLS = {dtype: kernel_calls(dtype) for dtype in (np.float32, np.float64)}


def results_of(backend, kind, call):
    """Give every array that a kernel computed, also those that it changed in place."""
    result = backend.kernels[kind](*call.arguments, **call.settings)
    results = result if isinstance(result, tuple) else (result,)
    changed = [call.arguments[position] for position in IN_PLACE.get(kind, ())]
    return [array for array in (*results, *changed) if array is not None]


def arrays_in(call):
    for value in call.arguments:
        yield from value if isinstance(value, tuple) else (value,)


def test_the_table_calls_every_kernel():
    for calls in CALLS.values():
        assert sorted(calls) == sorted(NUMPY.kernels) == KINDS
        assert all(calls.values())


@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_computes_what_the_reference_computes(kind, dtype, layout):
    for call in CALLS[dtype][kind]:
        computed = results_of(NUMPY, kind, call.copied(layout))
        expected = results_of(REFERENCE, kind, call.copied("contiguous"))
        assert len(computed) == len(expected)
        for ours, theirs in zip(computed, expected, strict=True):
            assert_close(ours, theirs, terms=call.terms)


@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_never_changes_its_inputs(kind, backend, dtype, layout):
    for call in CALLS[dtype][kind]:
        used, kept = call.copied(layout), call.copied("contiguous")
        backend.kernels[kind](*used.arguments, **used.settings)
        pairs = zip(arrays_in(used), arrays_in(kept), strict=True)
        for position, (after, before) in enumerate(pairs):
            if isinstance(before, np.ndarray) and position not in IN_PLACE.get(kind, ()):
                np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_reads_arrays_that_cannot_be_written(kind, backend):
    # Gradients of sums arrive as read-only views of one number.
    for call in CALLS[np.float64][kind]:
        locked = call.copied("contiguous")
        for position, array in enumerate(arrays_in(locked)):
            if isinstance(array, np.ndarray) and position not in IN_PLACE.get(kind, ()):
                array.flags.writeable = False
        assert len(results_of(backend, kind, locked)) > 0


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("kind", sorted(IN_PLACE))
def test_an_optimizer_step_changes_its_parameter_in_place(kind, backend):
    for call in CALLS[np.float32][kind]:
        used = call.copied("contiguous")
        assert backend.kernels[kind](*used.arguments, **used.settings) is None
        assert (used.arguments[0] != call.arguments[0]).any()


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_in_float32_is_as_exact_as_float32_allows(approximate):
    x = np.linspace(-8, 8, 40_001, dtype=np.float32)
    exact = REFERENCE.kernels["gelu"](x.astype(np.float64), approximate=approximate)
    computed = NUMPY.kernels["gelu"](x, approximate=approximate)
    # erf and tanh are good to 2e-7, and multiply x / 2, at most 4; then a few roundings of x
    np.testing.assert_allclose(
        computed, exact, rtol=0, atol=4 * 2e-7 + 8 * np.finfo(np.float32).eps
    )


def test_sorting_ids_gives_the_same_sums_every_time(rng):
    ids, grad = rng.integers(0, 7, 500), rng.normal(size=(500, 3)).astype(np.float32)
    first, second = (NUMPY.kernels["embedding_backward"](grad, ids, count=9) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not first[7:].any()


@pytest.mark.parametrize("transposed", [(0,), (1,), (2,), (3,), (2, 3), (0, 2, 3)], ids=str)
def test_an_adam_step_does_not_depend_on_the_order_of_its_arrays(transposed):
    call = CALLS[np.float64]["adam_step"][0]
    kept = call.copied("contiguous").arguments
    odd = [np.asfortranarray(a) if i in transposed else a.copy() for i, a in enumerate(kept)]
    NUMPY.kernels["adam_step"](*odd, **call.settings)
    REFERENCE.kernels["adam_step"](*kept, **call.settings)
    for ours, theirs in zip(odd, kept, strict=True):
        assert_close(ours, theirs)
