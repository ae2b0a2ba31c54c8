import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.models.pytorch_tensors import (
    as_spec,
    flat_tensors,
    held_bytes,
    parts_of,
    storage_of,
)

BLOCKS = torch.block_diag(*[torch.ones(2, 2)] * 3)  # 6 x 6 with 12 ones
SPARSE = {
    "coo": (lambda: BLOCKS.to_sparse_coo(), 12 * 4 + 2 * 12 * 8),
    "csr": (lambda: BLOCKS.to_sparse_csr(), 12 * 4 + (7 + 12) * 8),
    "csc": (lambda: BLOCKS.to_sparse_csc(), 12 * 4 + (7 + 12) * 8),
    "bsr": (lambda: BLOCKS.to_sparse_bsr((2, 2)), 12 * 4 + (4 + 3) * 8),
    "bsc": (lambda: BLOCKS.to_sparse_bsc((2, 2)), 12 * 4 + (4 + 3) * 8),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse.*tensor support is in beta")
def test_a_sparse_tensor_holds_its_values_and_indices(layout):
    make, nbytes = SPARSE[layout]
    spec = as_spec(make())
    assert (spec.shape, spec.stored, spec.nbytes) == ((6, 6), 12, nbytes)
    assert held_bytes(make()) == nbytes


@pytest.mark.parametrize(
    ("tensor", "nbytes"),
    [
        (torch.ones(4, 5), 80),
        (torch.ones(4, 5, dtype=torch.bfloat16), 40),
        (torch.ones(5).expand(4, 5), 20),
        (torch.ones(100)[:5], 20),
        (torch.ones(4, 5).T, 80),
        (torch.tensor(1.0), 4),
        (torch.empty(0, 3), 0),
        (torch.ones(4, 5, device="meta"), 80),
    ],
    ids=lambda each: str(tuple(each.shape)) if isinstance(each, torch.Tensor) else "",
)
def test_a_tensor_holds_the_bytes_that_are_there(tensor, nbytes):
    assert held_bytes(tensor) == as_spec(tensor).nbytes == nbytes
    assert as_spec(tensor).shape == tuple(tensor.shape)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_a_ragged_tensor_has_parts():
    ragged = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)])
    spec = as_spec(ragged)
    assert (spec.shape, spec.parts, spec.nbytes) == ((), ((3, 8), (5, 8)), 8 * 8 * 4)


def test_behind_a_wrapper_stand_plain_tensors():
    values = torch.ones(8, 4)
    ragged = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 8]))
    parts = parts_of(ragged)
    assert parts[0].data_ptr() == values.data_ptr()
    assert held_bytes(ragged) == sum(part.nbytes for part in parts) >= values.nbytes


def test_a_subclass_that_wraps_nothing_is_itself():
    class Marked(torch.Tensor):
        pass

    tensor = torch.ones(3).as_subclass(Marked)
    assert parts_of(tensor) == [tensor]
    assert held_bytes(tensor) == 12


def test_views_have_the_storage_of_their_base():
    base = torch.ones(4, 5)
    assert storage_of(base.T[1:])._cdata == storage_of(base)._cdata
    assert storage_of(base.to_sparse_coo()) is None


def test_a_packed_tensor_is_described_by_its_elements():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no packed layout")
    spec = as_spec(torch.ones(4, 5).to_mkldnn())
    assert (spec.shape, spec.nbytes, spec.stored) == ((4, 5), 80, None)


def test_tensors_are_found_in_what_operators_take():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert list(flat_tensors([a, (None, b), {"x": [c]}, 3, "text"])) == [a, b, c]
