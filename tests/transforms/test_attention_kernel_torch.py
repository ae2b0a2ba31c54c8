import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.transforms.fuse_attention.kernel import (
    AnotherCall,
    attend,
    expect,
    like_scores,
)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_hand(q, k, v, scale=1.0, added=0.0, kept=None, fill=-torch.inf):
    scores = q @ k.transpose(-2, -1) * scale + added
    if kept is not None:
        scores = scores.masked_fill(~kept, fill)
    return scores.softmax(-1) @ v


def is_close(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ()),
        ((3,), (3,)),
        ((2, 3), (2, 3)),
        ((2, 3), (2, 1)),
        ((2, 3), (3,)),
        ((1, 3), (2, 1)),
        ((2, 2, 3), (2, 2, 3)),
        ((2, 2, 3), (1, 1, 3)),
    ],
)
def test_any_number_of_first_axes_is_computed(first, second):
    q, k, v = drawn(*first, 4, 8), drawn(*second, 6, 8, seed=1), drawn(*second, 6, 8, seed=2)
    assert is_close(attend(q, k, v, scale=(0.3,)), by_hand(q, k, v, 0.3))
    shape = (q @ k.transpose(-2, -1)).shape
    assert like_scores(q, k).shape == shape
    mask = drawn(*shape[-1:], seed=3)
    assert is_close(attend(q, k, v, add=(mask,)), by_hand(q, k, v, added=mask))
    kept = drawn(*shape, seed=4) < 0.9
    assert is_close(
        attend(q, k, v, keep=(kept,), spread=True), by_hand(q, k, v, kept=kept, fill=-1e9)
    )


Q, K, V = (drawn(2, 3, 5, 8, seed=seed) for seed in range(3))


@pytest.mark.parametrize(
    "shape", [(5, 5), (1, 5), (5, 1), (1,), (3, 1, 5), (2, 1, 1, 5), (1, 3, 5, 1), (2, 3, 5, 5)]
)
def test_masks_of_every_shape_are_spread_over_the_scores(shape):
    mask = drawn(*shape, seed=7)
    assert is_close(attend(Q, K, V, add=(mask,)), by_hand(Q, K, V, added=mask))
    kept = (mask < 0.7) | torch.zeros(shape, dtype=torch.bool)
    expected = by_hand(Q, K, V, kept=kept, fill=-1e9)
    assert is_close(attend(Q, K, V, keep=(kept,), spread=True), expected)
    assert is_close(attend(Q, K, V, drop=(~kept,), spread=True), expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"add": (drawn(4, 1, 5, 5),)},
        {"add": (drawn(2, 1, 1, 5, 5),)},
        {"scale": (drawn(5, 5),)},
        {"divide": (drawn(5),)},
    ],
)
def test_shapes_that_the_kernel_has_no_place_for_are_another_call(settings):
    with pytest.raises(AnotherCall):
        attend(Q[:1], K[:1], V[:1], **settings)


def test_conditions_are_checked():
    expect(3 > 2, True)
    with pytest.raises(AnotherCall):
        expect(3 > 2, False)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (5, 1)])
def test_scales_may_be_tensors(shape):
    factor = drawn(*shape, seed=6).abs() + 0.5
    assert is_close(attend(Q, K, V, scale=(factor, 2)), by_hand(Q, K, V, factor * 2))
    assert is_close(attend(Q, K, V, divide=(factor, 2)), by_hand(Q, K, V, 1 / factor / 2))


def test_a_scale_of_zero_is_one():
    assert is_close(attend(Q, K, V, scale=(0.0,)), by_hand(Q, K, V, 0.0))


@pytest.mark.parametrize(
    ("kind", "mask"),
    [
        ("keep", torch.ones(5, 5).tril()),
        ("drop", torch.ones(1, 1, 5, 5).triu(1)),
        ("add", torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)),
    ],
)
def test_triangles_are_causal_if_they_are_square(kind, mask, monkeypatch):
    kept = torch.ones(5, 5, dtype=torch.bool).tril()
    asked = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(*args, **settings):
        asked.append(settings["is_causal"])
        return kernel(*args, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    found = attend(Q, K, V, causal=mask, kind=kind)
    assert is_close(found, by_hand(Q, K, V, kept=kept))
    row = attend(Q[..., :1, :], K, V, causal=mask[..., :1, :1], kind=kind)
    assert is_close(row, by_hand(Q[..., :1, :], K, V))
    other = drawn(2, 1, 1, 5, seed=4) < 0.8
    found = attend(Q, K, V, causal=mask, kind=kind, keep=(other,), spread=True)
    expected = by_hand(Q, K, V, kept=kept & other, fill=-1e9)
    assert is_close(found, expected)
    assert asked == [True, False, False]


def test_a_mask_that_is_held_is_looked_at_again_when_it_was_written_to():
    held = torch.ones(9, 9).tril()
    for change in (lambda: None, lambda: held[4].fill_(1), lambda: held.copy_(torch.ones(9, 9))):
        change()
        found = attend(Q, K, V, causal=held[:5, :5], held=held)
        assert is_close(found, by_hand(Q, K, V, kept=held[:5, :5].bool()))


def test_large_numbers_of_another_dtype_stay_finite():
    q, k, v = (each.to(torch.bfloat16) for each in (Q, K, V))
    mask = torch.full((5, 5), torch.finfo(torch.float32).min)
    found = attend(q, k, v, add=(mask,))
    assert found.isfinite().all()
    assert torch.allclose(found.double(), V.mean(-2, keepdim=True), atol=0.02)


def test_large_numbers_stay_finite_where_autocast_makes_them_smaller():
    mask = torch.full((5, 5), torch.finfo(torch.float32).min)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(Q.float(), K.float(), V.float(), add=(mask,))
    assert torch.allclose(found.double(), V.mean(-2, keepdim=True), atol=0.02)


def test_values_of_another_dtype_give_theirs():
    found = attend(Q.float(), K.float(), V.to(torch.bfloat16))
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), by_hand(Q, K, V), atol=0.03)
