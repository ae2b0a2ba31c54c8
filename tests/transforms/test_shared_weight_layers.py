import copy

import numpy as np
import pytest

from tinytorch.core.autograd import check_gradients, no_grad
from tinytorch.core.checkpoints import load_checkpoint, save_checkpoint
from tinytorch.core.dispatch import use_backend
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.optimizers import SGD, AdamW
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError
from tinytorch.transforms import share_weights as module
from tinytorch.transforms.share_weights import SharedWeightConv2d, SharedWeightLinear, find_codebook


def linear(entries=16, *, zeros=False, dtype=np.float32, bias=True):
    layer = Linear(9, 7, bias=bias, rng=0).astype(dtype)
    if zeros:
        layer.weight.data[::2] = 0
    return layer, SharedWeightLinear(layer, find_codebook(layer.weight.data, entries))


def convolution(entries=16):
    layer = Conv2d(4, 6, 3, stride=2, padding=1, groups=2, dilation=(1, 2), rng=0)
    return layer, SharedWeightConv2d(layer, find_codebook(layer.weight.data, entries))


@pytest.mark.parametrize("entries", [2, 16, 17, 40])
def test_a_linear_layer_computes_with_the_weights_that_its_codes_mean(entries, rng):
    layer, shared = linear(entries)
    x = Tensor(rng.normal(size=(3, 9)).astype(np.float32))
    expected = x.data @ shared.codebook.data[shared.codes] + layer.bias.data
    np.testing.assert_allclose(shared(x).data, expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(shared.weight.data)) <= entries


@pytest.mark.parametrize("backend", ["reference", "numpy"])
def test_the_dense_layer_computes_the_same(backend, rng):
    images = Tensor(rng.normal(size=(2, 4, 8, 9)).astype(np.float32))
    rows = Tensor(rng.normal(size=(2, 5, 9)).astype(np.float32))
    with use_backend(backend):
        for (layer, shared), x in ((linear(), rows), (convolution(), images)):
            dense = shared.dense()
            assert type(dense) is type(layer)
            assert repr(dense) == repr(layer)
            np.testing.assert_array_equal(dense(x).data, shared(x).data)
            np.testing.assert_array_equal(dense.weight.data, shared.weight.data)


def test_one_image_is_taken_as_well(rng):
    _, shared = convolution()
    image = Tensor(rng.normal(size=(4, 8, 9)).astype(np.float32))
    batch = shared(image.reshape(1, 4, 8, 9))
    np.testing.assert_array_equal(shared(image).data, batch.data[0])


def test_the_bytes_of_the_weight_are_really_gone():
    _, shared = linear()
    arrays = shared.state_dict()
    assert {name: array.nbytes for name, array in arrays.items()} == {
        "values": 32,  # 63 codes of half a byte
        "codebook": 64,
        "bias": 28,
    }
    assert shared.memory_usage() == {
        "original_bytes": 63 * 4 + 28,
        "shared_bytes": 124,
        "compression_ratio": 280 / 124,
    }


@pytest.mark.parametrize("entries", [5, 30])
def test_gradients_of_entries_are_those_of_all_that_share_them(entries, rng):
    _, shared = linear(entries, dtype=np.float64)
    x = Tensor(rng.normal(size=(3, 9)), requires_grad=True)

    def function(codebook, x, bias):
        shared.codebook, shared.bias = codebook, bias
        return (shared(x) ** 2).sum()

    check_gradients(function, shared.codebook, x, shared.bias)
    shared.codebook.grad = None
    dense = shared.dense()
    (shared(x) ** 2).sum().backward()
    (dense(x) ** 2).sum().backward()
    sums = [dense.weight.grad[shared.codes == code].sum() for code in range(entries)]
    np.testing.assert_allclose(shared.codebook.grad, sums, rtol=1e-9, atol=1e-9)


def test_gradients_reach_the_codebook_of_a_convolution(rng):
    _, shared = convolution()
    shared.astype(np.float64)
    x = Tensor(rng.normal(size=(1, 4, 5, 5)), requires_grad=True)

    def function(codebook, x):
        shared.codebook = codebook
        return (shared(x) ** 2).sum()

    check_gradients(function, shared.codebook, x)
    assert shared.codebook.grad.shape == (16,)


@pytest.mark.parametrize("optimizer", [SGD, AdamW])
def test_training_moves_the_entries_and_zero_stays_zero(optimizer, rng):
    layer, shared = linear(zeros=True)
    before = shared.codebook.data.copy()
    steps = optimizer(shared.parameters(), lr=0.01)
    x = Tensor(rng.normal(size=(5, 9)).astype(np.float32))
    for _ in range(3):
        steps.zero_grad()
        (shared(x) ** 2).sum().backward()
        steps.step()
    assert shared.codebook.data[0] == 0
    assert (shared.codebook.data[1:] != before[1:]).all()
    np.testing.assert_array_equal(shared.weight.data == 0, layer.weight.data == 0)


def test_without_zeros_every_entry_learns(rng):
    _, shared = linear()
    shared(Tensor(rng.normal(size=(5, 9)).astype(np.float32))).sum().backward()
    assert not shared.keeps_zero
    assert (shared.codebook.grad != 0).all()


def test_a_checkpoint_holds_codes_and_codebook(tmp_path, rng):
    _, shared = linear()
    model = Sequential(shared)
    save_checkpoint(tmp_path / "shared.safetensors", model)
    _, other = linear()
    other.codebook.data = other.codebook.data + 1
    twin = Sequential(other)
    load_checkpoint(tmp_path / "shared.safetensors", twin)
    x = Tensor(rng.normal(size=(3, 9)).astype(np.float32))
    np.testing.assert_array_equal(twin(x).data, model(x).data)
    assert (tmp_path / "shared.safetensors").stat().st_size < 63 * 4 + 300


@pytest.mark.parametrize("backend", ["reference", "numpy"])
@pytest.mark.parametrize("entries", [5, 40])
def test_codes_that_mean_nothing_are_refused(entries, backend):
    _, shared = linear(entries)
    x = Tensor(np.ones((2, 9), np.float32))
    shared(x)
    state = {name: array.copy() for name, array in shared.state_dict().items()}
    state["values"][:] = 255
    shared.load_state_dict(state)
    code = 15 if entries == 5 else 255
    uses = (
        lambda: shared(x),
        shared.product,
        shared.dense,
        lambda: shared.weight,
        lambda: shared.codes,
    )
    for use in uses:
        with (
            use_backend(backend),
            pytest.raises(
                SettingError, match=f"a code of {code} among the 63 .* has only {entries} entries"
            ),
        ):
            use()


def test_codes_of_another_codebook_are_refused():
    _, shared = linear(5)
    shared.codebook.data = shared.codebook.data[:3]
    with pytest.raises(SettingError, match="has only 3 entries"):
        shared(Tensor(np.ones((2, 9), np.float32)))
    _, shared = linear()
    shared.values.data = shared.values.data.astype(np.int64)
    with pytest.raises(DTypeError, match="packed codes are uint8, got int64"):
        shared(Tensor(np.ones((2, 9), np.float32)))


def test_codes_are_looked_at_once(monkeypatch):
    _, shared = linear()
    x = Tensor(np.ones((2, 9), np.float32))
    shared(x)
    monkeypatch.setattr(module, "check_codes", lambda *_, **__: pytest.fail("once is enough"))
    shared.codebook.data = shared.codebook.data * 2  # as an optimizer does
    assert shared(x).shape == (2, 7)


def test_a_copy_is_a_layer_of_its_own(rng):
    _, shared = linear()
    twin = copy.deepcopy(shared)
    twin.codebook.data[:] = 0
    assert (shared.codebook.data != 0).all()
    x = Tensor(rng.normal(size=(3, 9)).astype(np.float32))
    assert (shared(x).data != twin(x).data).any()


def test_a_linear_layer_is_one_product_for_the_short_way_of_decoding(rng):
    _, shared = linear(bias=False)
    kind, arrays, settings = shared.product()
    assert (kind, settings) == ("linear", {})
    np.testing.assert_array_equal(arrays[0], shared.weight.data)
    assert arrays[1] is None


def test_inputs_that_do_not_fit_are_errors():
    _, shared = linear()
    with no_grad(), pytest.raises(ShapeError, match=r"needs input \(\.\.\., 9\), got \(2, 8\)"):
        shared(Tensor(np.ones((2, 8), np.float32)))
    _, conv = convolution()
    with pytest.raises(ShapeError, match="SharedWeightConv2d"):
        conv(Tensor(np.ones((2, 3, 8, 8), np.float32)))


def test_only_the_exact_layer_can_be_made_one():
    with pytest.raises(DTypeError, match="SharedWeightLinear is made from a Linear, not from Conv"):
        SharedWeightLinear(Conv2d(1, 1, 1), np.zeros(2))


def test_it_shows_what_it_holds():
    assert repr(linear()[1]) == "SharedWeightLinear(9, 7, entries=16, bias=True)"
    text = "SharedWeightConv2d(4, 6, kernel_size=(3, 3), entries=16, bias=True)"
    assert repr(convolution()[1]) == text
