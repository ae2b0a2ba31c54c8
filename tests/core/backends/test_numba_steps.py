from functools import partial

import numpy as np
import pytest
from compiled_checks import check_every_call, check_like_reference, signatures_of
from kernel_calls import Call
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import REFERENCE
from tinytorch.core.kernels.numba import elementwise as steps
from tinytorch.core.kernels.numba.elementwise import STEP_KERNELS

ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", STEP_KERNELS)
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(STEP_KERNELS, kind)


@pytest.mark.parametrize("transposed", [(0,), (1,), (2,), (3,), (2, 3), (0, 2, 3)], ids=str)
def test_an_adam_step_does_not_depend_on_the_order_of_its_arrays(transposed, rng):
    arrays = [normal(rng, 40, 30) for _ in range(3)] + [np.abs(normal(rng, 40, 30))]
    odd = [np.asfortranarray(a) if i in transposed else a.copy() for i, a in enumerate(arrays)]
    settings = {**ADAM, "step": 2, "weight_decay": 0.1, "decoupled": False}
    STEP_KERNELS["adam_step"](*odd, **settings)
    REFERENCE.kernels["adam_step"](*arrays, **settings)
    for ours, theirs in zip(odd, arrays, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("weight_decay", [0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_descends_as_in_pytorch(decoupled, weight_decay, rng):
    parameter = normal(rng, 300, 200)
    twin = torch.tensor(parameter, requires_grad=True)
    optimizer = getattr(torch.optim, "AdamW" if decoupled else "Adam")(
        [twin], weight_decay=weight_decay, **ADAM
    )
    first, second = np.zeros_like(parameter), np.zeros_like(parameter)
    for step in range(1, 6):
        grad = normal(rng, 300, 200)
        settings = {**ADAM, "step": step, "weight_decay": weight_decay, "decoupled": decoupled}
        assert STEP_KERNELS["adam_step"](parameter, grad, first, second, **settings) is None
        twin.grad = torch.tensor(grad)
        optimizer.step()
    assert_close(parameter, twin, terms=5)


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sgd_descends_as_in_pytorch(momentum, rng):
    parameter = normal(rng, 300, 200)
    twin = torch.tensor(parameter, requires_grad=True)
    optimizer = torch.optim.SGD([twin], lr=1, momentum=momentum, weight_decay=0.01)
    velocity = np.zeros_like(parameter) if momentum else None
    for _ in range(5):
        grad = normal(rng, 300, 200)
        STEP_KERNELS["sgd_step"](
            parameter, grad, velocity, lr=1, momentum=momentum, weight_decay=0.01
        )
        twin.grad = torch.tensor(grad)
        optimizer.step()
    assert_close(parameter, twin, terms=5)


def test_a_parameter_of_another_dtype_is_changed_all_the_same(rng):
    for dtype in (np.float64, np.float16):
        parameter, grad = normal(rng, 5).astype(dtype), normal(rng, 5).astype(dtype)
        expected = parameter - dtype(0.5) * grad
        STEP_KERNELS["sgd_step"](parameter, grad, None, lr=0.5, momentum=0.0, weight_decay=0.0)
        np.testing.assert_array_equal(parameter, expected)


def test_a_gradient_that_is_nan_is_not_hidden(rng):
    parameter, grad = normal(rng, 40), normal(rng, 40)
    grad[3] = np.nan
    first, second = np.zeros_like(grad), np.zeros_like(grad)
    settings = {**ADAM, "step": 1, "weight_decay": 0.0, "decoupled": True}
    STEP_KERNELS["adam_step"](parameter, grad, first, second, **settings)
    for array in (parameter, first, second):
        assert np.flatnonzero(np.isnan(array)).tolist() == [3]


def test_a_state_of_another_shape_is_refused_as_in_numpy(rng):
    larger, old = normal(rng, 64, 40), (5, 4)
    zeros = partial(np.zeros, dtype=np.float32)
    settings = {**ADAM, "step": 1, "weight_decay": 0.0, "decoupled": True}
    for shapes in ([old, larger.shape], [larger.shape, old]):
        with pytest.raises(ValueError, match="broadcast"):
            STEP_KERNELS["adam_step"](
                larger.copy(),
                larger,
                *map(zeros, shapes),
                **settings,
            )
    with pytest.raises(ValueError, match="broadcast"):
        STEP_KERNELS["sgd_step"](
            larger.copy(), larger, zeros(old), lr=1.0, momentum=0.9, weight_decay=0.0
        )


# ---------------------------------------------------------------- embeddings


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("shape", [(3,), (7, 90), (2, 3, 600)])
def test_rows_are_looked_up_and_their_gradients_added(shape, dtype, rng):
    table, ids = normal(rng, 50, 130), rng.integers(0, 50, shape).astype(dtype)
    check_like_reference(STEP_KERNELS, "embedding", Call((table, ids)))
    grad = normal(rng, *shape, 130)
    terms = int(np.bincount(ids.ravel()).max())
    check_like_reference(
        STEP_KERNELS, "embedding_backward", Call((grad, ids), {"count": 50}, terms)
    )


def test_the_loop_behind_large_look_ups_copies_rows(rng):
    table, ids = normal(rng, 50, 33), rng.integers(0, 50, 70)
    for version in (steps._gather.serial, steps._gather.parallel):
        out = np.empty((70, 33), np.float32)
        version(table, ids, out)
        np.testing.assert_array_equal(out, table[ids])


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_columns_can_be_shared_by_any_number_of_threads(parts, rng):
    rows, ids = normal(rng, 200, 33), rng.integers(0, 9, 200)
    expected = REFERENCE.kernels["embedding_backward"](rows, ids, count=9)
    for version in (steps._scatter_add.serial, steps._scatter_add.parallel):
        out = np.zeros((9, 33), np.float32)
        version(rows, ids, out, parts)
        assert_close(out, expected, terms=200)


@pytest.mark.parametrize("size", [3, 4000])
def test_ids_count_from_the_end_or_are_refused_as_in_numpy(size, rng):
    table, ids = normal(rng, 6, 80), np.resize([-1, 2, -6], size)
    check_like_reference(STEP_KERNELS, "embedding", Call((table, ids)))
    for wrong in (6, -7):
        with pytest.raises(IndexError, match="out of bounds"):
            STEP_KERNELS["embedding"](table, np.append(ids, wrong))


def test_gradients_of_ids_that_do_not_exist_are_refused(rng):
    with pytest.raises(IndexError):
        STEP_KERNELS["embedding_backward"](normal(rng, 3, 4), np.array([0, 9, 1]), count=9)


def test_each_loop_is_compiled_for_one_set_of_types():
    assert set(signatures_of(steps).values()) <= {0, 1}
