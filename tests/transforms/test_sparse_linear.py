"""A linear layer without its zeros."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.activations import GELU, ReLU
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import run
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, GraphError, ShapeError
from tinytorch.models.core import CoreAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms import sparse_layers as module
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.sparse_layers import SparseLinear, sparse_bytes


def pruned(inputs=20, outputs=7, sparsity=0.8, *, bias=True, seed=0):
    linear = Linear(inputs, outputs, bias, rng=seed)
    rng = np.random.default_rng(seed)
    linear.weight.data[rng.random(linear.weight.shape) < sparsity] = 0
    return linear


def floats(*shape, seed=1, dtype=np.float32):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from([(), (1,), (5,), (2, 3), (0,)]),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.booleans(),
)
def test_it_computes_what_the_layer_computes(inputs, outputs, rows, sparsity, bias):
    linear = pruned(inputs, outputs, sparsity, bias=bias)
    x = floats(*rows, inputs)
    with no_grad():
        ours, theirs = SparseLinear.of(linear)(x).data, linear(x).data
    assert ours.shape == theirs.shape
    # each of the sums is off by one rounding for each term at most
    scale = np.abs(x.data) @ np.abs(linear.weight.data) + 1
    assert (np.abs(ours - theirs) <= 2 * (inputs + 2) * np.finfo(np.float32).eps * scale).all()


@pytest.mark.parametrize("sparsity", [0.0, 0.9, 1.0])
def test_the_dense_layer_comes_back_bit_for_bit(sparsity):
    linear = pruned(sparsity=sparsity).eval()
    back = SparseLinear.of(linear).dense()
    assert type(back) is Linear
    assert not back.training
    assert back.weight.data.tobytes() == linear.weight.data.tobytes()
    assert back.bias.data.tobytes() == linear.bias.data.tobytes()
    assert back.weight.requires_grad


def test_a_layer_without_bias_stays_without():
    sparse = SparseLinear.of(pruned(bias=False))
    assert sparse.bias is None
    assert sparse.dense().bias is None


def test_nothing_is_held_in_common_with_the_dense_layer():
    linear = pruned()
    sparse = SparseLinear.of(linear)
    linear.bias.data += 1
    assert (sparse.bias.data != linear.bias.data).all()


def test_bytes_are_those_really_held():
    linear = pruned(300, 50, 0.9)
    sparse = SparseLinear.of(linear)
    specs = CoreAdapter().parameters(sparse)
    kept = int(np.count_nonzero(linear.weight.data))
    held = kept * (4 + 2) + 51 * 4
    assert sparse_bytes(linear.weight.data) == held
    assert sum(spec.nbytes for spec in specs) == held + 50 * 4
    usage = sparse.memory_usage()
    assert usage["sparse_bytes"] == held + 200
    assert usage["original_bytes"] == 300 * 50 * 4 + 200
    assert usage["compression_ratio"] == usage["original_bytes"] / usage["sparse_bytes"]


def test_it_stands_for_all_weights_of_the_dense_layer():
    sparse = SparseLinear.of(pruned(300, 50, 0.9))
    sizes = {spec.name: spec.size for spec in CoreAdapter().parameters(sparse)}
    assert sizes["values"] == 300 * 50
    assert sizes["bias"] == 50
    learned = {spec.name for spec in CoreAdapter().parameters(sparse) if not spec.is_buffer}
    assert learned == {"values", "bias"}


def test_more_inputs_take_wider_indices():
    weight = np.zeros((65_537, 2), np.float32)
    weight[65_536, 1] = 3
    linear = Linear(1, 2, rng=0)
    linear.in_features, linear.weight = 65_537, Tensor(weight)
    sparse = SparseLinear.of(linear)
    assert sparse.indices.dtype == np.int32
    assert sparse_bytes(weight) == 4 + 4 + 3 * 4
    x = Tensor(np.arange(65_537, dtype=np.float32))
    assert sparse(x).data[1] == 3 * 65_536 + linear.bias.data[1]


def test_only_what_is_multiplied_is_counted():
    sparse = SparseLinear.of(pruned(30, 11, 0.7))
    x = floats(2, 3, 30)
    recording = CoreAdapter().record(sparse, lambda: sparse(x), device="cpu")
    (operation,) = recording.operations
    assert operation.kind == "sparse_linear"
    assert operation.cost.macs == 6 * sparse.values.size
    held = sum(spec.nbytes for spec in CoreAdapter().parameters(sparse))
    assert operation.cost.bytes_read == held + x.data.nbytes
    assert operation.cost.bytes_written == 6 * 11 * 4


def test_inputs_of_other_floats_keep_their_dtype():
    sparse = SparseLinear.of(pruned())
    for dtype in (np.float64, np.float16):
        assert sparse(floats(3, 20, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("activation", [ReLU(), GELU()])
def test_an_activation_is_computed_in_the_same_kernel(activation):
    sparse, x = SparseLinear.of(pruned()), floats(4, 20)
    model = Sequential(sparse, activation).eval()
    transform = FuseLayers()
    workload = Workload("sparse", model, (x,))
    plan = transform.plan(workload)
    assert plan.layers == ("layers.0",)
    fused = transform.apply(workload, plan)
    recording = CoreAdapter().record(fused, lambda: fused(x), device="cpu")
    assert [each.kind for each in recording.operations] == ["sparse_linear"]
    # the same sums, through another formula of the same activation
    np.testing.assert_allclose(fused(x).data, model(x).data, rtol=1e-6, atol=1e-6)
    assert "activation=" in repr(fused.layers[0])
    assert sparse.activation is None


def test_its_product_can_be_run_directly():
    sparse, x = SparseLinear.of(pruned()), floats(4, 20)
    kind, arrays, settings = sparse.product()
    np.testing.assert_array_equal(run(kind, x.data, *arrays, **settings), sparse(x).data)


def test_it_shows_its_sparsity():
    linear = Linear(4, 2, rng=0)
    linear.weight.data[:3] = 0
    sparse = SparseLinear.of(linear)
    assert sparse.sparsity == 0.75
    assert repr(sparse) == "SparseLinear(4, 2, bias=True, sparsity=0.750)"


def test_a_copy_and_its_state_compute_the_same():
    sparse, x = SparseLinear.of(pruned()), floats(4, 20)
    twin = copy.deepcopy(sparse)
    np.testing.assert_array_equal(twin(x).data, sparse(x).data)
    twin.load_state_dict(sparse.state_dict())
    np.testing.assert_array_equal(twin(x).data, sparse(x).data)


@pytest.mark.parametrize(
    ("index", "message"), [(20, "takes input 20, and x has 20 inputs"), (0, "ascend")]
)
def test_a_state_that_would_lead_the_kernels_astray_is_refused(index, message):
    linear = Linear(20, 1, rng=0)
    linear.weight.data[[1, 3, 5]] = 0
    sparse = SparseLinear.of(linear)
    state = {name: array.copy() for name, array in sparse.state_dict().items()}
    state["indices"][4] = index
    sparse.load_state_dict(state)
    with pytest.raises(ShapeError, match=message):
        sparse(floats(1, 20))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("values", np.ones(3, np.float32)),
        ("pointers", np.array([0, 900, 17], np.int32)),
        ("pointers", np.array([0, 17], np.int32)),
    ],
)
def test_each_of_the_arrays_is_looked_at_anew(name, wrong):
    linear = Linear(20, 2, rng=0)
    linear.weight.data[5:, 1] = 0
    sparse, x = SparseLinear.of(linear), floats(1, 20)
    sparse(x)
    getattr(sparse, name).data = wrong  # the indices are the same array as before
    for use in (lambda: sparse(x), sparse.product, sparse.dense):
        with pytest.raises(ShapeError):
            use()


def test_what_was_looked_at_is_not_looked_at_again(monkeypatch):
    sparse, x = SparseLinear.of(pruned()), floats(4, 20)
    monkeypatch.setattr(module, "check_sparse", lambda *_, **__: pytest.fail("once is enough"))
    assert sparse(x).shape == sparse.with_activation("relu")(x).shape == (4, 7)


def test_indices_have_the_type_of_their_size():
    arrays = np.ones(1, np.float32), np.zeros(1, np.int64), np.array([0, 1], np.int32)
    with pytest.raises(DTypeError, match="indices of 3 inputs are uint16, got int64"):
        SparseLinear(*arrays, in_features=3)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (Tensor(np.ones((2, 19), np.float32)), ShapeError, r"needs input \(..., 20\), got \(2, 19"),
        (Tensor(np.float32(1)), ShapeError, "needs input"),
        (Tensor(np.ones((2, 20), np.int64)), DTypeError, "floating-point"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        SparseLinear.of(pruned())(x)


def test_gradients_are_refused_in_words():
    x = Tensor(np.ones((2, 20), np.float32), requires_grad=True)
    with pytest.raises(GraphError, match="lets no gradient through"):
        SparseLinear.of(pruned())(x)


def test_only_linear_layers_become_sparse():
    with pytest.raises(DTypeError, match="made of a Linear"):
        SparseLinear.of(ReLU())
