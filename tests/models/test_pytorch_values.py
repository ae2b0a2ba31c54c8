import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from safetensors import safe_open
from safetensors.torch import load_file

from tinytorch.core.tensor import Tensor
from tinytorch.errors import BackendError, CheckpointError, ModelError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import (
    as_arrays,
    copied_tensor,
    merged_state,
    single,
    write_state,
)

ADAPTER = TorchAdapter()


class Tied(nn.Module):
    """One weight under two names, and a transposed one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("scratch", torch.zeros(99), persistent=False)

    def forward(self, ids):
        return self.head(self.embedding(ids))


class Foreign:
    """A plain object around a module."""

    def __init__(self):
        self.net = nn.Linear(2, 3)

    def forward(self, x):
        return self.net(x)


class Marked(torch.Tensor):
    """A tensor class of somebody else."""


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, "float32"),
        (torch.float64, "float64"),
        (torch.float16, "float32"),
        (torch.bfloat16, "float32"),
        (torch.float8_e4m3fn, "float32"),
        (torch.int8, "int8"),
        (torch.int64, "int64"),
        (torch.bool, "bool"),
        (torch.complex64, "complex64"),
    ],
)
def test_every_dtype_has_an_array(dtype, expected):
    (array,) = as_arrays(torch.tensor([0.0, 1.0]).to(dtype))
    assert array.dtype == expected
    assert array.tolist() == [0, 1]


def test_tensors_of_every_layout_become_dense():
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for tensor in (dense.to_sparse(), dense.T.contiguous().T, dense.requires_grad_()):
        np.testing.assert_array_equal(as_arrays(tensor)[0], dense.detach().numpy())


def test_a_conjugate_is_resolved():
    assert as_arrays(torch.tensor([1j]).conj())[0].tolist() == [-1j]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_a_quantized_tensor_gives_what_it_stands_for():
    tensor = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8)
    assert as_arrays(tensor)[0].tolist() == [0.5, 1.0]


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_a_ragged_tensor_gives_several_arrays():
    tensor = torch.nested.nested_tensor([torch.ones(1), torch.zeros(2)])
    assert [each.tolist() for each in as_arrays(tensor)] == [[1], [0, 0]]


def test_an_output_that_was_never_computed_is_refused():
    with pytest.raises(BackendError, match="meta device"):
        as_arrays(torch.ones(2, device="meta"))


def test_arrays_do_not_follow_an_output_that_is_overwritten():
    output = torch.zeros(2)
    arrays = ADAPTER.arrays([output])
    output.fill_(1)
    assert arrays[0].tolist() == [0, 0]


def test_an_output_may_mix_frameworks():
    output = {"a": torch.ones(1), "b": (np.zeros(2), 3, Tensor([4.0]), "text")}
    assert [each.tolist() for each in ADAPTER.arrays(output)] == [[1], [0, 0], 3, [4]]


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).T,
        torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.arange(3.0).expand(5, 3),
        torch.randn(2).requires_grad_(),
        torch.tensor([1, 2]),
        torch.tensor(1.0),
        torch.empty(0, 3),
    ],
)
def test_a_copy_has_the_same_contents_and_layout_in_other_memory(tensor):
    twin = copied_tensor(tensor)
    assert torch.equal(twin, tensor)
    assert (twin.stride(), twin.dtype) == (tensor.stride(), tensor.dtype)
    assert twin.requires_grad is tensor.requires_grad
    assert twin.data_ptr() != tensor.data_ptr() or not tensor.numel()


def test_a_copy_of_a_computed_tensor_has_no_graph():
    twin = copied_tensor(torch.ones(2, requires_grad=True) * 2)
    assert twin.is_leaf
    assert twin.requires_grad


def test_inputs_are_copied_wherever_they_lie():
    x, y = torch.ones(2), np.ones(2)
    (copied,) = ADAPTER.copy_inputs(({"x": x, "again": [x, y]},))
    assert copied["x"] is copied["again"][0]
    assert copied["x"] is not x
    assert copied["again"][1] is not y


def test_repeated_memory_is_seen_once():
    assert single(torch.zeros(1, 3).expand(4, 3)).shape == (1, 3)


# ---------------------------------------------------------------- files


def test_a_tensor_under_two_names_is_written_once(tmp_path):
    model, path = Tied(), tmp_path / "model.safetensors"
    ADAPTER.save(model, path)
    loaded = load_file(path)
    assert set(loaded) == {"embedding.weight", "turned"}
    assert torch.equal(loaded["embedding.weight"], model.head.weight)
    assert torch.equal(loaded["turned"], model.turned)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"head.weight": "embedding.weight"}
    held = sum(tensor.numel() * 4 for tensor in loaded.values())
    # What safetensors adds is its table of names.
    assert held < path.stat().st_size < held + 400


def test_views_of_one_buffer_are_written_apart(tmp_path):
    whole = torch.arange(4.0)
    write_state({"low": whole[:2], "high": whole[2:]}, tmp_path / "file")
    assert load_file(tmp_path / "file")["high"].tolist() == [2, 3]


def test_several_empty_tensors_are_kept(tmp_path):
    write_state({"a": torch.empty(0), "b": torch.empty(0)}, tmp_path / "file")
    assert set(load_file(tmp_path / "file")) == {"a", "b"}


def test_a_module_inside_of_a_plain_object_is_written_under_its_path(tmp_path):
    ADAPTER.save(Foreign(), tmp_path / "file")
    assert set(load_file(tmp_path / "file")) == {"net.weight", "net.bias"}
    assert set(merged_state([("a", nn.Linear(1, 1)), ("", nn.Linear(1, 1))])) == {
        *("a.weight", "a.bias"),
        *("weight", "bias"),
    }


@pytest.mark.parametrize(
    "state",
    [
        {"packed": (torch.ones(2), None)},
        {"sparse": torch.eye(2).to_sparse()},
        {"marked": torch.ones(2).as_subclass(Marked)},
    ],
)
def test_what_safetensors_cannot_hold_is_written_by_torch(tmp_path, state):
    write_state(state, tmp_path / "file")
    loaded = torch.load(tmp_path / "file", weights_only=False)
    assert loaded.keys() == state.keys()


def test_half_a_number_takes_half_the_bytes(tmp_path):
    sizes = []
    for dtype in (torch.float32, torch.bfloat16):
        write_state({"w": torch.zeros(10_000, dtype=dtype)}, tmp_path / "file")
        sizes.append((tmp_path / "file").stat().st_size)
    assert sizes[0] - sizes[1] == pytest.approx(20_000, abs=8)  # the header is padded to 8 bytes


def test_a_model_without_parameters_has_no_file(tmp_path):
    with pytest.raises(ModelError, match="nothing to write"):
        ADAPTER.save(nn.ReLU(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_state({"w": torch.ones(1)}, tmp_path / "file" / "inner")
