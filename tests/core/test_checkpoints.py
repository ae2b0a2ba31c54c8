"""Checkpoints: what is saved comes back bit for bit, and what does not fit changes nothing."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.checkpoints import load_checkpoint, read_arrays, save_checkpoint, write_arrays
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.optimizers import SGD, Adam
from tinytorch.core.spatial import BatchNorm2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import CheckpointError


class Scaled(Module):
    """A model with a scalar parameter, a buffer and parts."""

    def __init__(self, seed=0):
        self.scale = Parameter(np.float32(1.5 + seed))
        self.norm = BatchNorm2d(2)
        self.body = Sequential(Linear(4, 3, rng=seed), ReLU(), Linear(3, 2, rng=seed + 1))

    def forward(self, x):
        return self.body(x) * self.scale


def snapshot(model):
    return {name: array.copy() for name, array in model.state_dict().items()}


def assert_equal_states(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def take_steps(model, optimizer, count, rng):
    for _ in range(count):
        optimizer.zero_grad()
        (model(Tensor(rng.standard_normal((5, 4)).astype(np.float32))) ** 2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.arange(10, dtype=np.int8)[::2],
        np.array([True, False]),
        np.array(3, np.int64),
        np.zeros((0, 4), np.float16),
        np.arange(3, dtype=">f4"),
        np.array([np.nan, np.inf, -0.0], np.float32),
    ],
)
def test_arrays_come_back_with_shape_dtype_and_values(array, tmp_path):
    write_arrays(tmp_path / "a", {"name": array})
    found = read_arrays(tmp_path / "a")[0]["name"]
    assert found.shape == array.shape
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


def test_metadata_comes_back(tmp_path):
    metadata = {"epoch": 3, "note": "é", "values": [1.5, None], "nested": {"a": True}}
    save_checkpoint(tmp_path / "a", Linear(1, 1), metadata=metadata)
    assert load_checkpoint(tmp_path / "a", Linear(1, 1)) == metadata


def test_metadata_of_another_tool_stays_text(tmp_path):
    numpy_format = require_part("safetensors.numpy")
    numpy_format.save_file({"a": np.zeros(1)}, tmp_path / "a", metadata={"format": "pt"})
    assert read_arrays(tmp_path / "a")[1] == {"format": "pt"}


def test_a_model_comes_back_bit_for_bit(tmp_path):
    model, other = Scaled(0), Scaled(7)
    model.norm.running_mean.data = np.array([1, 2], np.float32)
    save_checkpoint(tmp_path / "a", model)
    load_checkpoint(tmp_path / "a", other)
    assert_equal_states(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("kind", [Adam, lambda params: SGD(params, momentum=0.9), SGD])
def test_training_goes_on_bit_for_bit(kind, tmp_path):
    model = Scaled(0)
    optimizer = kind(model.parameters())
    rng = np.random.default_rng(1)
    take_steps(model, optimizer, 3, rng)
    save_checkpoint(tmp_path / "a", model, optimizer)
    twin = Scaled(9)
    twin_optimizer = kind(twin.parameters())
    load_checkpoint(tmp_path / "a", twin, twin_optimizer)
    for each in ((model, optimizer), (twin, twin_optimizer)):
        take_steps(*each, 4, np.random.default_rng(2))
    assert_equal_states(twin.state_dict(), model.state_dict())
    assert_equal_states(twin_optimizer.state_dict(), optimizer.state_dict())


def test_a_model_can_be_loaded_without_its_optimizer(tmp_path):
    model = Scaled(0)
    optimizer = Adam(model.parameters())
    take_steps(model, optimizer, 1, np.random.default_rng(0))
    save_checkpoint(tmp_path / "a", model, optimizer)
    other = Scaled(3)
    load_checkpoint(tmp_path / "a", other)
    assert_equal_states(other.state_dict(), model.state_dict())


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("body.layers.2.bias"), "missing key 'body.layers.2.bias'"),
        (lambda arrays: arrays.update(extra=np.zeros(1)), "unknown key 'extra'"),
        (
            lambda arrays: arrays.update({"body.layers.0.weight": np.zeros((3, 4), np.float32)}),
            r"'body.layers.0.weight' has shape \(3, 4\), the model needs \(4, 3\)",
        ),
        (lambda arrays: arrays.pop("optimizer/steps"), "missing key 'steps' for Adam"),
        (lambda arrays: arrays.pop("optimizer/0.second"), "missing key '0.second' for Adam"),
        (
            lambda arrays: arrays.update({"optimizer/0.velocity": np.zeros(())}),
            "unknown key '0.velocity' for Adam",
        ),
        (
            lambda arrays: arrays.update({"optimizer/99.first": np.zeros(())}),
            "unknown key '99.first' for Adam",
        ),
        (
            lambda arrays: arrays.update({"optimizer/3.first": np.zeros((9, 9))}),
            r"optimizer key '3.first' has shape \(9, 9\), the parameter needs \(4, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(change, message, tmp_path):
    model = Scaled(0)
    optimizer = Adam(model.parameters())
    take_steps(model, optimizer, 1, np.random.default_rng(0))
    path = tmp_path / "weights"
    save_checkpoint(path, model, optimizer)
    arrays, _ = read_arrays(path)
    change(arrays)
    write_arrays(path, arrays)
    other = Scaled(5)
    fresh = Adam(other.parameters(), lr=0.5)
    before = snapshot(other)
    with pytest.raises(CheckpointError, match=f"weights: .*{message}"):
        load_checkpoint(path, other, fresh)
    assert_equal_states(other.state_dict(), before)
    assert fresh.state_dict() == {"steps": 0, "lr": 0.5}


def test_a_checkpoint_without_an_optimizer_says_so(tmp_path):
    model = Scaled(0)
    save_checkpoint(tmp_path / "a", model)
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load_checkpoint(tmp_path / "a", model, Adam(model.parameters()))


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match=f"there is no checkpoint at {path}"):
            load_checkpoint(path, Linear(1, 1))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_an_error_that_names_it_and_nothing_changes(share, tmp_path):
    path = tmp_path / "weights"
    save_checkpoint(path, Scaled(0))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    model = Scaled(5)
    before = snapshot(model)
    message = r"weights cannot be read as safetensors \(truncated, or another format\?\)"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, model)
    assert_equal_states(model.state_dict(), before)


def test_another_format_is_an_error(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        read_arrays(tmp_path / "a.npy")


@pytest.mark.parametrize("extended", [False, True], ids=["numpy", "numpy with ml_dtypes"])
def test_numbers_that_numpy_lacks_are_an_error_that_says_what_to_do(tmp_path, extended):
    if extended:  # it teaches NumPy such numbers for the whole process
        require_part("ml_dtypes")
    torch = require_part("torch")
    torch_format = require_part("safetensors.torch")
    torch_format.save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"bfloat16.* save it as float32"):
        read_arrays(tmp_path / "a")


def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "weights"
    write_arrays(path, {"a": np.ones(2)})
    with pytest.raises(CheckpointError, match=r"weights cannot be written: .*complex128"):
        write_arrays(path, {"a": np.array([1j])})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_arrays(path, {"a": np.zeros(2)}, {"rng": np.random.default_rng()})
    assert read_arrays(path)[0]["a"].tolist() == [1, 1]
    assert list(tmp_path.iterdir()) == [path]
