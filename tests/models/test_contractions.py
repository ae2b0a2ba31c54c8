"""The oracle: with ones for numbers, the sum of all results is the number of products in it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch.core.kernels import BACKENDS
from tinytorch.models import contractions as of
from tinytorch.models.contractions import _packed_lengths
from tinytorch.models.records import Call, TensorSpec

KERNELS = BACKENDS["reference"].kernels
lengths = st.integers(1, 4)


def spec(shape, **more):
    shape = tuple(shape)
    return TensorSpec(shape, "float32", 4 * math.prod(shape), **more)


def call(*inputs, output=None, **settings):
    specs = tuple(spec(shape) if isinstance(shape, tuple) else shape for shape in inputs)
    return Call("kind", specs, () if output is None else (spec(output),), settings)


def ones(shape):
    return np.ones(shape, np.int64)


# ---------------------------------------------------------------- products


@given(st.lists(lengths, max_size=2), lengths, lengths, lengths, st.booleans(), st.booleans())
def test_products_of_matrices_and_vectors(batch, m, k, n, left_is_vector, right_is_vector):
    left = (k,) if left_is_vector else (*batch, m, k)
    right = (k,) if right_is_vector else (k, n)
    result = ones(left) @ ones(right)
    assert of.product(call(left, right, output=result.shape)) == result.sum()
    assert of.added_product(call((n,), left, right, output=result.shape)) == result.sum()


@given(st.lists(lengths, max_size=3), lengths, lengths)
def test_linear_layers(rows, k, n):
    result = ones((*rows, k)) @ ones((k, n))
    assert of.linear(call((*rows, k), (n, k), output=result.shape)) == result.sum()


def test_a_linear_layer_on_ragged_rows_counts_the_real_ones():
    ragged = TensorSpec((), "float32", 0, parts=((3, 8), (5, 8)))
    result = TensorSpec((), "float32", 0, parts=((3, 4), (5, 4)))
    assert of.linear(Call("linear", (ragged,), (result,), {})) == (3 + 5) * 8 * 4


def test_a_sparse_matrix_multiplies_only_what_it_stores():
    sparse = spec((6, 5), stored=7)
    assert of.product(call(sparse, (5, 3), output=(6, 3))) == 7 * 3
    assert of.product(call(sparse, (5,), output=(6,))) == 7


def test_a_sum_of_products_of_a_batch():
    result = (ones((3, 2, 5)) @ ones((3, 5, 4))).sum(axis=0)
    assert of.summed_batch_product(call((2, 4), (3, 2, 5), (3, 5, 4), output=(2, 4))) == (
        result.sum()
    )


@pytest.mark.parametrize(
    ("left", "right", "ends", "groups"),
    [
        ((10, 3), (2, 3, 4), (4, 7), [((4, 3), (3, 4)), ((3, 3), (3, 4))]),  # three rows are left
        ((2, 5, 3), (3, 10), (4, 10), [((5, 3), (3, 4)), ((5, 3), (3, 6))]),
        ((5, 10), (10, 3), (4, 10), [((5, 4), (4, 3)), ((5, 6), (6, 3))]),
        ((2, 5, 3), (2, 3, 4), None, [((5, 3), (3, 4))] * 2),
    ],
    ids=["rows", "columns", "inner axis", "whole matrices"],
)
def test_products_of_groups_count_every_group(left, right, ends, groups):
    truth = sum((ones(a) @ ones(b)).sum() for a, b in groups)
    assert of.grouped_product(call(left, right, offs=ends)) == truth


def test_distances_of_all_pairs_are_one_product_with_the_squares_as_columns():
    result = ones((6, 3 + 2)) @ ones((3 + 2, 4))
    assert of.squared_distances(call((6, 3), (4, 3), output=(6, 4))) == result.sum()


# ---------------------------------------------------------------- convolution


@given(
    batch=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    kernel=st.tuples(lengths, lengths),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_every_output_meets_every_tap_also_on_padding(batch, groups, kernel, stride, padding):
    settings = {"stride": stride, "dilation": (1, 1), "groups": groups}
    # ones all around, so that taps on the padding count as well
    x = np.ones((batch, 4, 7 + 2 * padding[0], 6 + 2 * padding[1]))
    weight = np.ones((6, 4 // groups, *kernel))
    result = KERNELS["conv2d"](x, weight, None, padding=(0, 0), **settings)
    forward = call((batch, 4, 7, 6), weight.shape, output=result.shape, **settings)
    assert of.convolution(forward) == result.sum()
    # both gradients pair the same outputs and taps
    gradients = [
        of.convolution_input_gradient(call(result.shape, weight.shape)),
        of.convolution_weight_gradient(call(result.shape, x.shape, weight_shape=weight.shape)),
    ]
    assert gradients == [result.sum()] * 2


@given(lengths, lengths, st.integers(1, 3), st.tuples(lengths, lengths), st.integers(0, 2))
def test_a_packed_weight_tells_no_shape_and_counts_the_same(batch, inputs, groups, kernel, padding):
    images, weight = (batch, inputs * groups, 5, 5), (2 * groups, inputs, *kernel)
    how = {"stride": (1, 2), "padding": (padding, padding), "dilation": (1, 1), "groups": groups}
    result = KERNELS["conv2d"](ones(images), ones(weight), **how)
    plain = of.convolution(call(images, weight, output=result.shape, **how))
    packed = call(images, (math.prod(weight),), output=result.shape, kernel_size=kernel, **how)
    assert of.packed_convolution(packed) == plain


@pytest.mark.parametrize("mask", [(True, True, False), (False, True, True), (False, False, True)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_backward_pass_costs_a_forward_pass_for_each_gradient_that_is_wanted(mask, transposed):
    x, weight, out = (2, 4, 5, 5), (4, 6, 3, 3), (2, 6, 7, 7)
    grad, weight = (out, weight) if transposed else ((2, 4, 3, 3), (4, 4, 3, 3))
    settings = {"transposed": transposed, "output_mask": mask}
    forward = of.convolution(call(x, weight, output=grad, transposed=transposed))
    assert of.convolution_backward(call(grad, x, weight, **settings)) == sum(mask[:2]) * forward


def test_a_transposed_convolution_spreads_every_input_over_every_tap():
    torch = require_part("torch")
    x, weight = torch.ones(2, 4, 5, 3), torch.ones(4, 3, 3, 2)
    result = torch.nn.functional.conv_transpose2d(x, weight, stride=2, groups=2)
    found = of.convolution(call((2, 4, 5, 3), (4, 3, 3, 2), output=result.shape, transposed=True))
    assert found == result.sum().item()


def test_a_convolution_with_the_time_first():
    torch = require_part("torch")
    x, weight = torch.ones(7, 2, 4), torch.ones(3, 4, 5)
    result = torch.conv_tbc(x, weight, torch.zeros(5))
    found = of.time_first_convolution(call((7, 2, 4), (3, 4, 5), output=result.shape))
    assert found == result.sum().item()


# ---------------------------------------------------------------- attention


@given(st.lists(lengths, max_size=2), lengths, lengths, lengths, lengths)
def test_attention_is_the_scores_and_the_weighted_sum(batch, queries, keys, width, value_width):
    query, key = ones((*batch, queries, width)), ones((*batch, keys, width))
    scores = query @ key.swapaxes(-1, -2)
    weighted = ones(scores.shape) @ ones((*batch, keys, value_width))
    shapes = query.shape, key.shape, (*batch, keys, value_width)
    forward = of.attention(call(*shapes, output=weighted.shape))
    assert forward == scores.sum() + weighted.sum()
    assert of.attention_backward(call(weighted.shape, *shapes)) == 2 * forward
    assert of.recomputed_scores(call(weighted.shape, *shapes)) == scores.sum()


def test_with_fewer_heads_of_keys_every_query_still_meets_every_key():
    shapes = (2, 8, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)
    assert of.attention(call(*shapes, output=(2, 8, 5, 4))) == 2 * 8 * 5 * 7 * (4 + 4)


@given(st.integers(0, 6), st.integers(0, 6))
def test_causal_pairs_are_the_ones_of_a_triangle(queries, keys):
    first_sees_one = np.tri(queries, keys, dtype=int)
    last_sees_all = np.tri(queries, keys, keys - queries, dtype=int)
    assert of.causal_pairs(queries, keys, last_sees_all=False) == first_sees_one.sum()
    assert of.causal_pairs(queries, keys, last_sees_all=True) == last_sees_all.sum()


@pytest.mark.parametrize("names", [("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k")])
def test_packed_sequences_attend_only_to_themselves(names):
    query, key = (12, 3, 4), (15, 3, 4)  # tokens, heads, width
    starts = dict(zip(names, ((0, 5, 12), (0, 9, 15)), strict=True))
    found = of.packed_attention(call(query, key, key, **starts))
    assert found == sum(of.attention(_one(q, k)) for q, k in ((5, 9), (7, 6)))


def _one(queries, keys):
    return call((3, queries, 4), (3, keys, 4), (3, keys, 4), output=(3, queries, 4))


def test_packed_attention_without_bounds_is_a_batch():
    shapes = (2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4)  # batch, time, heads, width
    assert of.packed_attention(call(*shapes)) == 2 * of.attention(_one(5, 7))
    assert of.packed_attention(call((2, 5, 3, 4), *shapes), first=1) == 2 * of.attention(_one(5, 7))


def test_a_packed_backward_pass_has_two_gradients_of_each_product_and_the_scores_again():
    query, key = (12, 3, 4), (15, 3, 4)
    starts = {"cum_seq_q": (0, 5, 12), "cum_seq_k": (0, 9, 15)}
    forward = of.packed_attention(call(query, key, key, **starts))
    backward = call(query, query, key, key, **starts)
    assert of.packed_attention_backward(backward) == 2 * forward
    assert of.recomputed_packed_scores(backward) == forward // 2  # keys are as wide as values


def attending(kind, *shapes, output, **settings):
    found = call(*shapes, output=output, **settings)
    return Call(kind, found.inputs, found.outputs, settings)


@pytest.mark.parametrize(
    ("kind", "settings", "last_sees_all"),
    [
        ("attention", {"causal": True}, True),
        ("aten._scaled_dot_product_flash_attention", {"is_causal": True}, False),
        ("aten._flash_attention_forward", {"is_causal": True}, False),
        ("aten._efficient_attention_forward", {"custom_mask_type": 1}, False),
        ("aten._efficient_attention_forward", {"custom_mask_type": 2}, True),
    ],
)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3)])
def test_a_causal_mask_leaves_the_pairs_of_a_triangle(kind, settings, last_sees_all, queries, keys):
    query, key = (2, 3, queries, 4), (2, 3, keys, 4)  # batch, heads, time, width
    if kind in of.PACKED_ATTENTION:
        query, key = (2, queries, 3, 4), (2, keys, 3, 4)
    found = attending(kind, query, key, key, output=query, **settings)
    pairs = np.tri(queries, keys, keys - queries if last_sees_all else 0).sum()
    macs = 2 * 3 * queries * keys * 8
    assert of.visible_to_causal(found, macs) == 2 * 3 * pairs * 8


@pytest.mark.parametrize("settings", [{}, {"causal": False}, {"custom_mask_type": 0}])
def test_without_a_causal_mask_all_is_visible(settings):
    shape = (2, 3, 5, 4)
    found = attending("attention", shape, shape, shape, output=shape, **settings)
    assert of.visible_to_causal(found, 100) == 100


def test_of_sequences_end_to_end_each_has_its_own_triangle():
    query, key = (12, 3, 4), (15, 3, 4)
    starts = {"cum_seq_q": (0, 5, 12), "cum_seq_k": (0, 9, 15)}
    settings = {"is_causal": True, **starts}
    found = attending("aten._flash_attention_forward", query, key, key, output=query, **settings)
    pairs = np.tri(5, 9).sum() + np.tri(7, 6).sum()
    assert of.visible_to_causal(found, of.packed_attention(found)) == 3 * 8 * pairs


@pytest.mark.parametrize("lengths_of", [(5, 5), (5, 3)])
def test_a_fused_layer_projects_real_tokens_and_pads_in_between(lengths_of):
    tokens, longest = sum(lengths_of), max(lengths_of)
    ragged = TensorSpec((), "float32", 0, parts=tuple((n, 8) for n in lengths_of))
    x = spec((2, 5, 8)) if lengths_of == (5, 5) else ragged
    projections = 4 * tokens * 8 * 8
    attended = 2 * 2 * longest * longest * 8
    fused = of.multi_head_attention(call(x, x, x, embed_dim=8))
    assert fused == projections + attended
    weights = [(1, 1)] * 8 + [(20, 8)]
    encoder = of.encoder_layer(call(x, *weights, output=(2, 5, 8), embed_dim=8))
    assert encoder == fused + 2 * tokens * 8 * 20


# ---------------------------------------------------------------- recurrent layers


def test_every_token_meets_every_weight_matrix_of_a_recurrent_layer():
    weights = (4 * 6, 3), (4 * 6, 6)
    one = of.recurrent_layer(call((7, 2, 3), *weights, (24,), (24,)))
    assert one == 7 * 2 * sum(math.prod(weight) for weight in weights)
    stacked = (*(spec(weight) for weight in weights), spec((24,)), spec((24,)))
    network = Call("rnn", (spec((7, 2, 3)), stacked), (), {})
    assert of.recurrent_network(network) == one


@pytest.mark.parametrize("wants_state", [False, True])
@pytest.mark.parametrize("wants_input", [False, True])
def test_a_recurrent_layer_spares_gradients_that_nobody_asks_for(wants_input, wants_state):
    time, batch, features, hidden = 7, 2, 3, 6
    by_input, by_state = (24, features), (24, hidden)
    asking = ["input"] * wants_input + ["hx_"] * wants_state
    tensors = (time, batch, features), by_input, by_state, (24,), (24,), (batch, hidden)
    layer = call(*tensors, asking=asking)
    steps_back = time if wants_state else time - 1
    expected = of.recurrent_layer(layer)  # the gradients of both weights
    expected += batch * (
        steps_back * math.prod(by_state) + wants_input * time * math.prod(by_input)
    )
    assert of.recurrent_layer_backward(layer) == expected
    assert expected + of.unasked_layer_gradients(layer) == 2 * of.recurrent_layer(layer)
    # a network of two layers in both directions
    lowest, upper = (24, features), (24, 2 * hidden)
    groups = [(each, by_state, (24,), (24,)) for each in (lowest, lowest, upper, upper)]
    weights = tuple(spec(shape) for group in groups for shape in group)
    settings = {"weight_stride0": 4, "bidirectional": True}
    settings["output_mask"] = [wants_input, wants_state, wants_state, True]
    inputs = spec(tensors[0]), weights, None, spec((4, batch, hidden))
    network = Call("rnn", inputs, (), settings)
    expected = of.recurrent_network(network)
    expected += batch * (4 * steps_back * math.prod(by_state) + 2 * time * math.prod(upper))
    expected += wants_input * 2 * batch * time * math.prod(lowest)
    assert of.recurrent_network_backward(network) == expected
    assert expected + of.unasked_network_gradients(network) == 2 * of.recurrent_network(network)


def test_a_trilinear_form_contracts_two_factors_and_then_the_third():
    # left (rows, in1), weight (out, in1, in2), right (rows, in2), as a bilinear layer has them
    axes = {"expand1": (1, 3), "expand2": (0,), "expand3": (1, 2)}
    found = of.trilinear(call((2, 3), (5, 3, 4), (2, 4), **axes, sumdim=(2, 3), unroll_dim=1))
    first = ones((2, 3)) @ ones((3, 5 * 4))  # (rows, out * in2)
    then = ones((2, 5, 4)) @ ones((4,))
    assert found == first.sum() + then.sum()


def test_sequences_are_packed_only_where_both_bounds_are_known():
    queries, keys = (TensorSpec((2, time, 4, 8), "float32", 256 * time) for time in (3, 5))
    both = {"cum_seq_q": [0, 2, 3], "cum_seq_k": [0, 1, 5]}
    assert _packed_lengths(Call("x", (queries, keys), (), both), 0) == [(2, 1), (1, 4)]
    for settings in ({}, {"cum_seq_q": [0, 2, 3]}, {"cum_seq_k": [0, 1, 5]}):
        found = _packed_lengths(Call("x", (queries, keys), (), settings), 0)
        assert found == [(3, 5), (3, 5)]
