"""PyTorch models as compressed files."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.errors import CheckpointError, SettingError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.transforms.compressed_file import (
    compressed_state,
    load_compressed,
    save_compressed,
    with_state,
)

torch = require_part("torch")
if True:  # torch is there from here on
    from torch_workloads import Residual, Tied, bits_of, is_unchanged, mlp, seeded

MODELS = {"mlp": lambda: mlp(32), "residual": Residual, "tied": Tied}


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_written(tmp_path, name, bits):
    model = seeded(MODELS[name]).eval()
    before = bits_of(model)
    held = with_state(model, compressed_state(model, bits=bits))
    size = save_compressed(tmp_path / "model", model, bits=bits, metadata={"made": "here"})
    assert size == (tmp_path / "model").stat().st_size
    like = MODELS[name]()
    untouched = bits_of(like)
    loaded, metadata = load_compressed(tmp_path / "model", like)
    assert metadata == {"made": "here"}
    assert is_unchanged(loaded, bits_of(held))
    assert is_unchanged(model, before)
    assert is_unchanged(like, untouched)
    assert bits is not None or is_unchanged(loaded, before)


def test_weights_are_whole_numbers_and_the_rest_is_not(tmp_path):
    model = seeded(Residual)
    save_compressed(tmp_path / "model", model, bits=8, keep=("head",))
    arrays = read_weights(tmp_path / "model").arrays
    whole = {name for name, each in arrays.items() if isinstance(each, QuantizedArray)}
    assert whole == {"stem.weight", "conv.weight"}
    assert arrays.keys() == model.state_dict().keys()
    assert arrays["norm.num_batches_tracked"].dtype == np.int64


def test_a_tensor_with_two_names_is_written_once(tmp_path):
    model = seeded(Tied)
    save_compressed(tmp_path / "model", model, bits=8)
    assert "heads.0.weight" not in read_weights(tmp_path / "model").arrays
    loaded, _ = load_compressed(tmp_path / "model", Tied())
    assert loaded.heads[0].weight is loaded.table.weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bits", [None, 8])
def test_other_dtypes_come_back(tmp_path, dtype, bits):
    model = seeded(mlp, 16).to(dtype)
    held = with_state(model, compressed_state(model, bits=bits))
    save_compressed(tmp_path / "model", model, bits=bits)
    loaded, _ = load_compressed(tmp_path / "model", mlp(16).to(dtype))
    assert is_unchanged(loaded, bits_of(held))
    assert {value.dtype for value in loaded.state_dict().values()} == {dtype}
    assert bits is not None or is_unchanged(loaded, bits_of(model))


def test_a_model_that_differs_is_refused(tmp_path):
    save_compressed(tmp_path / "model", mlp(16), bits=8)
    with pytest.raises(CheckpointError, match=r"'0.weight' has shape \(16, 16\), the model needs"):
        load_compressed(tmp_path / "model", mlp(24))
    with pytest.raises(CheckpointError, match="the model does not"):
        load_compressed(tmp_path / "model", torch.nn.Sequential(torch.nn.Linear(16, 16)))
    with pytest.raises(CheckpointError, match=r"the file does not"):
        load_compressed(tmp_path / "model", torch.nn.Sequential(*mlp(16), torch.nn.Linear(2, 2)))
    with pytest.raises(SettingError, match="are not resized"):
        load_compressed(tmp_path / "model", mlp(24), resize=True)


def test_what_a_file_cannot_hold_is_said(tmp_path):
    class Sparse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("places", torch.eye(3).to_sparse())

    with pytest.raises(SettingError, match="does not hold; save the model as it was before"):
        save_compressed(tmp_path / "model", Sparse())
    with pytest.raises(SettingError, match="meta device"):
        save_compressed(tmp_path / "model", mlp(4).to("meta"))
    with pytest.raises(SettingError, match="NumPy does not have"):
        save_compressed(tmp_path / "model", torch.nn.ParameterList([torch.zeros(2)]).to(
            torch.float8_e4m3fn))  # fmt: skip


def test_numbers_that_are_not_finite_come_back(tmp_path):
    model = seeded(mlp, 8)
    with torch.no_grad():
        model[0].weight[0, :2] = torch.tensor([float("nan"), float("inf")])
    save_compressed(tmp_path / "model", model)
    loaded, _ = load_compressed(tmp_path / "model", mlp(8))
    for name, value in loaded.state_dict().items():
        assert value.numpy().tobytes() == model.state_dict()[name].numpy().tobytes()
    with pytest.raises(SettingError, match=r"weight '0.weight': 2 of 64 elements are not finite"):
        save_compressed(tmp_path / "model", model, bits=8)


def test_short_floats_take_their_sixteen_bits(tmp_path):
    sizes = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = seeded(mlp, 64).to(dtype)
        sizes[dtype] = save_compressed(tmp_path / "model", model, metadata={"made": "here"})
        loaded, metadata = load_compressed(tmp_path / "model", mlp(64).to(dtype))
        assert is_unchanged(loaded, bits_of(model))
        assert metadata == {"made": "here"}
    count = sum(each.numel() for each in model.parameters())
    assert sizes[torch.bfloat16] < 2 * count < sizes[torch.float32]
    assert read_weights(tmp_path / "model").arrays["0.weight"].dtype == np.uint16
    wide, _ = load_compressed(tmp_path / "model", mlp(64))
    assert torch.equal(wide[0].weight, model[0].weight.float())


def test_short_floats_that_are_none_are_refused(tmp_path):
    arrays = {name: value.numpy() for name, value in seeded(mlp, 8).state_dict().items()}
    for names in (["0.weight"], ["none"], [5], 5):
        write_weights(tmp_path / "model", arrays, {"bfloat16": names})
        with pytest.raises(CheckpointError, match=r"holds bfloat16; it does not"):
            load_compressed(tmp_path / "model", mlp(8))


class Counting(torch.nn.Module):
    def __init__(self, count, dtype):
        super().__init__()
        self.register_buffer("count", torch.tensor(count, dtype=dtype))


def test_whole_numbers_need_their_own_dtype(tmp_path):
    save_compressed(tmp_path / "model", Counting(2**40, torch.int64))
    for dtype in (torch.int32, torch.uint8, torch.bool, torch.float32):
        with pytest.raises(CheckpointError, match="'count' holds int64, the model needs torch"):
            load_compressed(tmp_path / "model", Counting(0, dtype))
    assert load_compressed(tmp_path / "model", Counting(0, torch.int64))[0].count == 2**40


def test_floats_round_to_narrower_ones_unless_they_are_beyond(tmp_path):
    save_compressed(tmp_path / "model", Counting(0.1, torch.float32))
    for dtype in (torch.float16, torch.bfloat16):
        loaded, _ = load_compressed(tmp_path / "model", Counting(0, dtype))
        assert loaded.count == torch.tensor(0.1, dtype=dtype)
    save_compressed(tmp_path / "model", Counting(1e6, torch.float32))
    with pytest.raises(CheckpointError, match=r"'count' holds 1e\+06, beyond torch.float16"):
        load_compressed(tmp_path / "model", Counting(0, torch.float16))


def test_a_model_without_numbers_is_said_to_be(tmp_path):
    with pytest.raises(SettingError, match=r"'0\.weight' has no shape yet; call the model once"):
        save_compressed(tmp_path / "model", torch.nn.Sequential(torch.nn.LazyLinear(4)), bits=8)
    save_compressed(tmp_path / "model", mlp(4))
    with pytest.raises(SettingError, match="meta device"):
        load_compressed(tmp_path / "model", mlp(4).to("meta"))


def test_a_compiled_model_is_the_model_inside(tmp_path):
    model = seeded(mlp, 16)
    compiled = torch.compile(model, backend="eager")
    plain = save_compressed(tmp_path / "plain", model, bits=8)
    assert save_compressed(tmp_path / "compiled", compiled, bits=8) == plain
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "compiled").read_bytes()
    loaded, _ = load_compressed(tmp_path / "compiled", mlp(16))
    again, _ = load_compressed(tmp_path / "plain", torch.compile(mlp(16), backend="eager"))
    assert is_unchanged(again._orig_mod, bits_of(loaded))
