import pytest
from parts import require_part

torch = require_part("torch")
F = torch.nn.functional

from tinytorch.transforms.static_generation.operators import (
    ACTIVATIONS,
    attend,
    gated_product,
    joint_product,
)


def drawn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("rows", [(), (1,), (2, 1), (3, 2)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_joint_product_is_layers_side_by_side(rows, has_bias):
    x = drawn(*rows, 8)
    weights = [drawn(size, 8, seed=size) for size in (3, 5)]
    biases = [drawn(size, seed=9) for size in (3, 5)] if has_bias else []
    offsets = biases or [None, None]
    expected = [F.linear(x, w, b) for w, b in zip(weights, offsets, strict=True)]
    found = joint_product(x, weights, biases, False)
    assert torch.equal(found, torch.cat(expected, -1))


def test_a_transposed_product_takes_matrices_of_inputs_and_outputs():
    x, weight, bias = drawn(2, 8), drawn(8, 5, seed=1), drawn(5, seed=2)
    found = joint_product(x, [weight], [bias], True)
    assert torch.allclose(found, torch.addmm(bias, x, weight), atol=1e-5)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_gated_product_is_an_activation_times_another_layer(name):
    x, gate, up = drawn(2, 1, 8), drawn(5, 8, seed=1), drawn(5, 8, seed=2)
    expected = ACTIVATIONS[name](F.linear(x, gate)) * F.linear(x, up)
    assert torch.equal(gated_product(x, gate, up, name), expected)


def test_attention_sees_what_is_written_and_not_masked():
    q, k, v = drawn(2, 4, 1, 8), drawn(2, 2, 10, 8, seed=1), drawn(2, 2, 10, 8, seed=2)
    mask = torch.ones(2, 1, 1, 10, dtype=torch.bool)
    mask[1, ..., :3] = False
    state = torch.tensor([6, 0, 0, 0, 0])
    keys, values = (each[:, :, :7].repeat_interleave(2, 1) for each in (k, v))
    for given in (None, mask):
        seen = None if given is None else given[..., :7]
        expected = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=0.3)
        found = attend(q, k, v, given, state, 0.3)
        assert found.shape == (2, 1, 4, 8)
        assert torch.allclose(found, expected.transpose(1, 2), atol=1e-6)  # a few roundings


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (joint_product, (drawn(2, 8), [drawn(3, 8), drawn(5, 8)], [drawn(3), drawn(5)], False)),
        (joint_product, (drawn(2, 8), [drawn(8, 3)], [drawn(3)], True)),
        (gated_product, (drawn(1, 1, 8), drawn(5, 8), drawn(5, 8), "silu")),
        (
            attend,
            (
                drawn(1, 4, 1, 8),
                drawn(1, 2, 6, 8),
                drawn(1, 2, 6, 8),
                None,
                torch.zeros(3).long(),
                1.0,
            ),
        ),
    ],
)
def test_compilers_are_told_the_truth_about_shapes(operator, args):
    checks = ("test_schema", "test_faketensor")
    outcome = torch.library.opcheck(operator, args, test_utils=checks)
    assert set(outcome.values()) == {"SUCCESS"}
