"""Bytes by hand, for every kind of rule, of operators that really ran."""

import numpy as np
import pytest
from byte_cases import ID, OPERATORS, ROW, TABLE, N, mask, vector
from flop_cases import as_model
from parts import require_part

from tinytorch.core import tensor as core
from tinytorch.core.dispatch import run
from tinytorch.core.embeddings import Embedding
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.models.costs import CREATION, POINTWISE, VIEW, Rule, update
from tinytorch.models.records import Call, Cost, TensorSpec
from tinytorch.profiling.flops import record_call

torch = require_part("torch")
aten = torch.ops.aten


def recorded(function, *inputs):
    """Run a function of PyTorch and give the one operator that is no view."""
    records = record_call(as_model(function), *inputs).operations
    (found,) = [record for record in records if record.cost != Cost("view")]
    return found


def moved(function, *inputs):
    cost = recorded(function, *inputs).cost
    return cost.bytes_read, cost.bytes_written


class Running(Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def moved_by_core(function, *inputs):
    (record,) = record_call(Running(function), *inputs).operations
    return record.cost.bytes_read, record.cost.bytes_written


# ---------------------------------------------------------------- PyTorch, rule by rule


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_moves_the_bytes_that_it_moves(name):
    function, inputs, expected = OPERATORS[name]
    record = recorded(function, *inputs)
    assert (record.cost.bytes_read, record.cost.bytes_written) == expected
    going_in = Call(record.kind, record.inputs, (), {}).tensors
    assert record.cost.bytes_read <= sum(spec.nbytes for spec in going_in)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, m: x.index_put_((m,), torch.ones(())), (1000 + 4, N)),
        (lambda x, m: x.__setitem__(m, 0.0), (1000 + 4, N)),
    ],
    ids=["put", "set"],
)
def test_one_number_at_a_mask_counts_as_the_whole_target(function, expected):
    records = record_call(as_model(function), vector(), mask(3)).operations
    (cost,) = [record.cost for record in records if record.kind == "aten.index_put"]
    assert (cost.bytes_read, cost.bytes_written) == expected


def test_copies_and_zeros_compute_nothing():
    for name in ("copy", "copy of a list", "zero", "zero of a list", "put", "clone"):
        function, inputs, _ = OPERATORS[name]
        cost = recorded(function, *inputs).cost
        assert (cost.macs, cost.other_flops) == (0, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.unsafe_split(x, 10),
        lambda x: x.reshape(10, 100),
        lambda x: torch.empty_like(x),
        lambda x: x.unsqueeze_(0),
    ],
    ids=["split", "reshape", "empty", "in place"],
)
def test_what_shares_or_reserves_memory_moves_nothing(function):
    records = record_call(as_model(function), vector()).operations
    assert records
    assert all(record.cost == Cost("view") for record in records)


# ---------------------------------------------------------------- optimizers


def fused(step, *, slots, **more):
    """Record a fused step of 1000 parameters that has so many vectors of state."""
    state = [[vector()] for _ in range(slots)]
    return moved(lambda p, g: step([p], [g], *state, **more), vector(), vector())


ADAM = {
    **dict.fromkeys(("lr", "beta1", "beta2", "weight_decay", "eps"), 0.1),
    "amsgrad": False,
    "maximize": False,
}
SGD = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "dampening"), 0.1),
    **dict.fromkeys(("nesterov", "maximize", "is_first_step"), False),
}


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_a_fused_step_writes_all_lists_but_the_gradients(name):
    steps = [torch.ones(())]

    def step(parameters, gradients, means, squares, largest=(), **settings):
        getattr(torch, name)(parameters, gradients, means, squares, largest, steps, **settings)

    assert fused(step, slots=2, **ADAM) == (4 * N + 4, 3 * N)
    assert fused(step, slots=3, **{**ADAM, "amsgrad": True}) == (5 * N + 4, 4 * N)


def test_a_fused_step_of_sgd_writes_parameters_and_velocity():
    assert fused(torch._fused_sgd_, slots=1, **SGD) == (3 * N, 2 * N)
    plain = {**SGD, "momentum": 0.0}
    assert moved(lambda p, g: torch._fused_sgd_([p], [g], [], **plain), vector(), vector()) == (
        2 * N,
        N,
    )


def test_a_fused_step_writes_gradients_back_without_their_scale():
    scale, found = torch.full((), 2.0), torch.zeros(())
    gradient = torch.full((1000,), 3.0)
    step = torch._fused_sgd_
    bytes_moved = moved(
        lambda p, g, v: step([p], [g], [v], **SGD, grad_scale=scale, found_inf=found),
        vector(),
        gradient,
        vector(),
    )
    assert bytes_moved == (3 * N + 4 + 4, 3 * N)
    assert gradient.unique().tolist() == [1.5]  # so it was written


def test_a_step_of_ours_writes_all_but_the_gradient():
    spec = TensorSpec((1000,), "float32", N)
    cost = update(14).cost_of(Call("adam_step", (spec,) * 4, (), {}))
    assert (cost.bytes_read, cost.bytes_written, cost.other_flops) == (4 * N, 3 * N, 14_000)


def test_a_step_that_gives_new_tensors_writes_these():
    spec = TensorSpec((1000,), "float32", N)
    call = Call("aten._fused_sgd", ((spec,), (spec,), ()), (spec, spec), {})
    assert update(6).cost_of(call).bytes_written == 2 * N


# ---------------------------------------------------------------- our own kernels


ROWS = np.ones((1000, 64), np.float32)
TWINS = {
    "exp": (lambda x: x.exp(), torch.exp, (ROWS,)),
    "sum": (lambda x: x.sum(), torch.sum, (ROWS,)),
    "matmul": (lambda x, y: x @ y, torch.mm, (ROWS[:3], ROWS[:64])),
    "index": (lambda x, i: x[i], lambda x, i: x[i], (ROWS, np.array([3, 1]))),
    "mask": (lambda x, m: x[m], lambda x, m: x[m], (ROWS, np.arange(1000) < 3)),
    "concatenate": (
        lambda x, y: core.concatenate([x, y]),
        lambda x, y: torch.cat([x, y]),
        (ROWS, ROWS[:5]),
    ),
    "embedding_backward": (
        lambda g, i: run("embedding_backward", g.data, i.data, count=1000),
        lambda g, i: aten.embedding_dense_backward(g, i, 1000, -1, False),
        (ROWS[:2], np.array([3, 1])),
    ),
    "avg_pool2d_backward": (
        lambda g: run(
            "avg_pool2d_backward",
            g.data,
            input_shape=(1, 4, 6, 6),
            kernel=(2, 2),
            stride=(2, 2),
            padding=(0, 0),
        ),
        lambda g: aten.avg_pool2d_backward(
            g, torch.empty(1, 4, 6, 6), [2, 2], [2, 2], [0, 0], False, True, None
        ),
        (np.ones((1, 4, 3, 3), np.float32),),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_both_frameworks_move_as_many_bytes(name):
    ours, theirs, arrays = TWINS[name]
    found = moved_by_core(ours, *(Tensor(array) for array in arrays))
    assert found == moved(theirs, *(torch.from_numpy(array) for array in arrays))
    assert min(found) > 0


def test_an_embedding_of_ours_reads_rows_and_indices():
    table = Embedding(1000, 64, rng=0)
    (record,) = record_call(table, Tensor(np.array([3, 1, 3]))).operations
    assert (record.cost.bytes_read, record.cost.bytes_written) == (3 * ROW + 3 * ID, 3 * ROW)


@pytest.mark.parametrize(
    ("index", "nbytes"),
    [(np.array([3, 1]), 2 * ID), ([3, 1], 2 * ID), ((slice(None), np.array([True] * 64)), 64)],
    ids=["array", "list", "mask in a tuple"],
)
def test_the_gradient_of_an_index_reads_what_was_picked_and_the_indices(index, nbytes):
    grad = ROWS[index]
    found = moved_by_core(
        lambda g: run("getitem_backward", g.data, shape=ROWS.shape, index=index), Tensor(grad)
    )
    assert found == (grad.nbytes + nbytes, TABLE)


# ---------------------------------------------------------------- the rule itself


def test_a_rule_counts_what_it_is_told_to():
    spec = TensorSpec((10,), "float32", 40)
    rule = Rule(
        "contraction",
        macs=lambda call: 5,
        other=lambda call: 6,
        recomputed=lambda call: 7,
        read=lambda call: 8,
        written=lambda call: 9,
    )
    cost = rule.cost_of(Call("kind", (spec,), (spec,), {}))
    assert cost == Cost("contraction", 5, 5, 7, 6, 8, 9)


def test_what_is_changed_is_written_also_when_it_is_not_given_back():
    spec = TensorSpec((10,), "float32", 40)
    call = Call("kind", (spec, (spec, spec), None), (), {}, changed=(1, 2))
    cost = POINTWISE.cost_of(call)
    assert (cost.bytes_read, cost.bytes_written) == (120, 80)


def test_what_is_changed_and_given_back_is_written_once():
    spec = TensorSpec((10,), "float32", 40)
    given_back = TensorSpec((10,), "float32", 40, is_view=True)
    cost = POINTWISE.cost_of(Call("kind", (spec,), (given_back,), {}, changed=(0,)))
    assert (cost.bytes_read, cost.bytes_written) == (40, 40)


def test_a_view_is_free_whatever_the_rule():
    view = TensorSpec((10,), "float32", 40, is_view=True)
    call = Call("kind", (view,), (view,), {})
    for rule in (VIEW, POINTWISE, CREATION):
        assert rule.cost_of(call) == Cost("view")
