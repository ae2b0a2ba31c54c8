"""The compiled gradients of attention are those of the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.attention import scaled_dot_product_attention
from tinytorch.core.dispatch import use_backend
from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.kernels.numba import attention as compiled
from tinytorch.core.kernels.numba import attention as forward
from tinytorch.core.tensor import Tensor

attention_backward = compiled.BACKWARD_KERNELS["attention_backward"]
reference = REFERENCE.kernels
COMPILED = NUMPY.extended("compiled attention", forward.KERNELS)
F = np.float32


def drawn(rng, lead, queries, keys, widths, *, causal):
    """Draw grad, query, key and value, and compute the weights in float64."""
    shapes = ((queries, widths[1]), (queries, widths[0]), (keys, widths[0]), (keys, widths[1]))
    grad, query, key, value = (rng.normal(size=(*lead, *shape)).astype(F) for shape in shapes)
    exact = (array.astype(np.float64) for array in (query, key, value))
    weights = reference["attention"](*exact, None, scale=0.3, causal=causal, keep_weights=True)[1]
    return grad, query, key, value, weights.astype(F)


def check_attention(arrays, *, causal):
    exact = [array.astype(np.float64) for array in arrays]
    wanted = reference["attention_backward"](*exact, scale=0.3, causal=causal)
    computed = attention_backward(*arrays, scale=0.3, causal=causal)
    # a sum over the width, one over the keys, and one over keys or queries follow each other
    terms = arrays[0].shape[-1] + sum(arrays[4].shape[-2:])
    for ours, theirs in zip(computed, wanted, strict=True):
        assert_close(ours, theirs.astype(F), terms=terms)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    lead=st.lists(st.integers(1, 3), max_size=3),
    queries=st.integers(1, 110),
    keys=st.integers(1, 110),
    widths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_sizes_are_exact(lead, queries, keys, widths, causal, seed):
    rng = np.random.default_rng(seed)
    check_attention(drawn(rng, lead, queries, keys, widths, causal=causal), causal=causal)


def test_strided_and_read_only_arrays_are_accepted(rng):
    arrays = drawn(rng, (2, 3), 30, 40, (16, 16), causal=False)
    views = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in arrays]
    views[0] = np.broadcast_to(F(1), views[0].shape)  # the gradient of a sum
    views[1].flags.writeable = False
    check_attention(views, causal=False)


def test_other_types_and_shapes_are_left_to_numpy(rng):
    arrays = drawn(rng, (2, 3), 4, 5, (3, 3), causal=False)
    double = [array.astype(np.float64) for array in arrays]
    assert attention_backward(*double, scale=0.3)[0].dtype == np.float64
    check_attention(
        [*arrays[:2], arrays[2][:1, :1], *arrays[3:]], causal=False
    )  # one key for all heads
    nothing = [array[:, :, :0] for array in arrays[:4]]
    gradients = attention_backward(*nothing, arrays[4][:, :, :0, :0], scale=0.3)
    assert [gradient.shape for gradient in gradients] == [(2, 3, 0, 3)] * 3


def test_gradients_of_hidden_keys_are_zero(rng):
    grad, query, key, value, weights = drawn(rng, (1, 2), 3, 60, (8, 8), causal=False)
    weights[..., 20:] = 0
    _, grad_key, grad_value = attention_backward(grad, query, key, value, weights, scale=1.0)
    assert not grad_key[..., 20:, :].any()
    assert not grad_value[..., 20:, :].any()


def test_heads_of_the_gradients_are_merged_without_a_copy(rng):
    arrays = drawn(rng, (2, 3), 30, 40, (16, 16), causal=True)
    for gradient in attention_backward(*arrays, scale=0.3, causal=True):
        batch, heads, time, width = gradient.shape
        merged = gradient.swapaxes(1, 2).reshape(batch, time, heads * width)
        assert np.shares_memory(merged, gradient)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_result(rng, monkeypatch, threads):
    arrays = drawn(rng, (2, 2), 60, 60, (16, 16), causal=True)
    alone = attention_backward(*arrays, scale=0.3, causal=True)
    monkeypatch.setattr(compiled, "THREADS", threads)
    together = attention_backward(*arrays, scale=0.3, causal=True)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_training_agrees_with_pytorch(rng, causal):
    arrays = [rng.normal(size=(2, 3, 50, 16)).astype(F) for _ in range(4)]
    tensors = [Tensor(array, requires_grad=True) for array in arrays[:3]]
    twins = [torch.tensor(array, requires_grad=True) for array in arrays[:3]]
    with use_backend(COMPILED):
        mix = scaled_dot_product_attention(*tensors, causal=causal)
        mix.backward(arrays[3])
    wanted = torch.nn.functional.scaled_dot_product_attention(*twins, is_causal=causal)
    wanted.backward(torch.from_numpy(arrays[3]))
    assert_close(mix.data, wanted, terms=66)
    for tensor, twin in zip(tensors, twins, strict=True):
        assert_close(tensor.grad, twin.grad, terms=116)


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("axis", [-1, -2])
def test_shapes_that_do_not_fit_are_left_to_numpy(position, axis, rng):
    arrays = list(drawn(rng, (1, 2), 30, 20, (16, 12), causal=False))
    index = [slice(None)] * 4
    index[axis] = slice(3, None)
    arrays[position] = arrays[position][tuple(index)]
    if position in (1, 2) and axis == -1:  # the scores are not computed again
        wanted = NUMPY.kernels["attention_backward"](*arrays, scale=0.3)
        for ours, theirs in zip(attention_backward(*arrays, scale=0.3), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    else:
        with pytest.raises(ValueError, match=r"mismatch|broadcast"):
            attention_backward(*arrays, scale=0.3)
