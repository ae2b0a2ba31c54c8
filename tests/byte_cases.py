"""Operators of PyTorch with the bytes that they read and write, by hand, for every kind of rule."""

from __future__ import annotations

from typing import Any

from parts import require_part

torch = require_part("torch")
aten = torch.ops.aten
F = torch.nn.functional

N = 4000
"""Bytes of a vector of 1000 numbers."""
TABLE, ROW, ID = 256_000, 256, 8
"""Bytes of a table of 1000 rows of 64 numbers, of one row, and of one index."""


def vector() -> Any:
    return torch.rand(1000)


def table() -> Any:
    return torch.rand(1000, 64)


def row(count: int = 1) -> Any:
    return torch.rand(count, 64)


def ids(*numbers: int) -> Any:
    return torch.tensor(numbers)


def mask(count: int) -> Any:
    """Pick the first rows of a table, or numbers of a vector."""
    return torch.arange(1000) < count


def zeros(*shape: int) -> Any:
    """Give indices that all point at the first row."""
    return torch.zeros(*shape, dtype=torch.int64)


OPERATORS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, int]]] = {
    # contraction
    "product": (torch.mm, (torch.rand(3, 5), torch.rand(5, 7)), (4 * 50, 4 * 21)),
    "product in place": (
        lambda c, a, b: c.addmm_(a, b),
        (torch.rand(3, 7), torch.rand(3, 5), torch.rand(5, 7)),
        (4 * (21 + 50), 4 * 21),
    ),
    # pointwise
    "exp": (torch.exp, (vector(),), (N, N)),
    "exp in place": (torch.exp_, (vector(),), (N, N)),
    "add": (torch.add, (vector(), vector()), (2 * N, N)),
    "add in place": (lambda x, y: x.add_(y), (vector(), vector()), (2 * N, N)),
    "masked fill in place": (
        lambda x, m: x.masked_fill_(m, 0.0),
        (vector(), mask(3)),
        (N + 1000, N),
    ),
    "dropout writes its mask": (
        lambda x: aten.native_dropout(x, 0.5, True),
        (vector(),),
        (N, N + 1000),
    ),
    # reduction and normalisation
    "sum": (torch.sum, (vector(),), (N, 4)),
    "softmax": (lambda x: x.softmax(0), (vector(),), (N, N)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        (table(), row()[0], row()[0]),
        (TABLE + 2 * ROW, TABLE + 2 * N),  # mean and deviation of each row
    ),
    "batch norm changes its statistics": (
        lambda x, *rest: aten._batch_norm_with_update(x, *rest, 0.1, 1e-5),
        (table(), *(torch.ones(64) for _ in range(4))),
        (TABLE + 4 * ROW, TABLE + 4 * ROW),
    ),
    # loss: one number of each row
    "loss": (
        lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100),
        (table(), zeros(1000)),
        (4 * 1000 + ID * 1000, 4 + 4),
    ),
    "gradient of a loss": (
        lambda g, x, t, total: aten.nll_loss_backward(g, x, t, None, 1, -100, total),
        (torch.ones(()), table(), zeros(1000), torch.ones(())),
        (4 + ID * 1000 + 4, TABLE),
    ),
    # pooling: (1, 4, 6, 6) numbers to (1, 4, 3, 3)
    "average pool": (lambda x: F.avg_pool2d(x, 2), (torch.rand(1, 4, 6, 6),), (4 * 144, 4 * 36)),
    "max pool writes its indices": (
        lambda x: F.max_pool2d(x, 2),
        (torch.rand(1, 4, 6, 6),),
        (4 * 144, 4 * 36 + 8 * 36),
    ),
    "gradient of an average pool": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        (torch.rand(1, 4, 3, 3), torch.rand(1, 4, 6, 6)),
        (4 * 36, 4 * 144),
    ),
    "gradient of a max pool": (
        lambda g, x, i: aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i
        ),
        (torch.rand(1, 4, 3, 3), torch.rand(1, 4, 6, 6), zeros(1, 4, 3, 3)),
        (4 * 36 + 8 * 36, 4 * 144),
    ),
    "gradient of an adaptive pool": (
        aten._adaptive_avg_pool2d_backward,
        (torch.rand(1, 4, 3, 3), torch.rand(1, 4, 6, 6)),
        (4 * 36, 4 * 144),
    ),
    # movement
    "clone": (torch.clone, (vector(),), (N, N)),
    "cast": (lambda x: x.double(), (vector(),), (N, 2 * N)),
    "cat": (lambda x, y: torch.cat([x, y]), (vector(), vector()), (2 * N, 2 * N)),
    "triangle in place": (lambda x: x.tril_(), (table(),), (TABLE, TABLE)),
    "gradient of an embedding": (
        lambda g, i: aten.embedding_dense_backward(g, i, 1000, -1, False),
        (row(3), ids(3, 1, 3)),
        (3 * ROW + 3 * ID, TABLE),
    ),
    "scatter of a slice, out of place": (
        lambda x, y: torch.slice_scatter(x, y, 0, 5, 6),
        (table(), row()),
        (TABLE + ROW, TABLE),
    ),
    "number": (lambda x: x.item(), (torch.ones(()),), (4, 0)),
    # copy
    "copy": (lambda x, y: x.copy_(y), (vector(), vector()), (N, N)),
    "copy of a row to all": (lambda x, y: x.copy_(y), (table(), row()), (ROW, TABLE)),
    "copy into a slice": (lambda x, y: x[2:3].copy_(y), (table(), row()), (ROW, ROW)),
    "copy of a list": (
        lambda x, y: aten._foreach_copy_([x, x], [y, y]),
        (vector(), vector()),
        (2 * N, 2 * N),
    ),
    # gather
    "embedding": (F.embedding, (ids(3, 1, 3), table()), (3 * ROW + 3 * ID, 3 * ROW)),
    "index": (lambda x, i: x[i], (table(), ids(3, 1)), (2 * ROW + 2 * ID, 2 * ROW)),
    "index in two axes": (
        lambda x, i, j: x[i, j],
        (table(), ids(3, 1), ids(0, 2)),
        (2 * 4 + 2 * 2 * ID, 2 * 4),
    ),
    "index by a mask": (lambda x, m: x[m], (table(), mask(3)), (3 * ROW + 1000, 3 * ROW)),
    "select": (lambda x, i: x.index_select(0, i), (table(), ids(7)), (ROW + ID, ROW)),
    "gather": (
        lambda x, i: x.gather(1, i),
        (table(), zeros(1000, 1)),
        (4 * 1000 + ID * 1000, 4 * 1000),
    ),
    "take": (torch.take, (table(), ids(5, 6)), (2 * 4 + 2 * ID, 2 * 4)),
    "a table is not read twice": (F.embedding, (zeros(50), row(2)), (2 * ROW + 50 * ID, 50 * ROW)),
    "enlarged image": (
        lambda x: F.interpolate(x, scale_factor=2),
        (torch.rand(1, 4, 6, 6),),
        (4 * 144, 4 * 4 * 144),
    ),
    # placed
    "put": (lambda x, i, y: x.index_put_((i,), y), (table(), ids(5), row()), (ROW + ID, ROW)),
    "put and add": (
        lambda x, i, y: x.index_put_((i,), y, accumulate=True),
        (table(), ids(5), row()),
        (ROW + ID + ROW, ROW),
    ),
    "put one number into two rows": (
        lambda x, i, y: x.index_put_((i,), y),
        (table(), ids(5, 6), torch.ones(())),
        (4 + 2 * ID, 2 * ROW),
    ),
    "put one number into a column": (
        lambda x, i, y: aten.index_put_(x, [None, i], y),
        (table(), ids(5), torch.ones(())),
        (4 + ID, 4 * 1000),
    ),
    "put numbers at a mask": (
        lambda x, m, y: x.index_put_((m,), y),
        (vector(), mask(3), torch.rand(3)),
        (1000 + 3 * 4, 3 * 4),
    ),
    "put, out of place": (
        lambda x, i, y: x.index_put((i,), y),
        (table(), ids(5), row()),
        (TABLE + ROW + ID, TABLE),
    ),
    "copy of rows": (
        lambda x, i, y: x.index_copy_(0, i, y),
        (table(), ids(5), row()),
        (ROW + ID, ROW),
    ),
    "copy of rows, out of place": (
        lambda x, i, y: x.index_copy(0, i, y),
        (table(), ids(5), row()),
        (TABLE + ROW + ID, TABLE),
    ),
    "add to rows": (
        lambda x, i, y: x.index_add_(0, i, y),
        (table(), ids(5), row()),
        (ROW + ID + ROW, ROW),
    ),
    "a target is not written twice": (
        lambda x, i, y: x.index_add_(0, i, y),
        (row(2), zeros(50), row(50)),
        (50 * ROW + 50 * ID + 2 * ROW, 2 * ROW),
    ),
    "scatter": (
        lambda x, i, y: x.scatter_(0, i, y),
        (table(), zeros(1, 64), row()),
        (ROW + 64 * ID, ROW),
    ),
    "scatter of a part of the source": (
        lambda x, i, y: x.scatter_(0, i, y),
        (table(), zeros(1, 64), row(9)),
        (ROW + 64 * ID, ROW),
    ),
    "scatter of a number": (
        lambda x, i: x.scatter_(0, i, 1.0),
        (table(), zeros(1, 64)),
        (64 * ID, ROW),
    ),
    "scatter and add": (
        lambda x, i, y: x.scatter_add_(0, i, y),
        (table(), zeros(1, 64), row()),
        (ROW + 64 * ID + ROW, ROW),
    ),
    "scatter and multiply by a number": (
        lambda x, i: x.scatter_(0, i, 2.0, reduce="multiply"),
        (table(), zeros(1, 64)),
        (64 * ID + ROW, ROW),
    ),
    "scatter, out of place": (
        lambda x, i, y: x.scatter(0, i, y),
        (table(), zeros(1, 64), row()),
        (TABLE + ROW + 64 * ID, TABLE),
    ),
    # creation
    "zeros": (lambda: torch.zeros(1000), (), (0, N)),
    "zeros like": (torch.zeros_like, (vector(),), (0, N)),
    "full like": (lambda x: torch.full_like(x, 3.0), (vector(),), (0, N)),
    "new zeros": (lambda x: x.new_zeros(3), (vector(),), (0, 12)),
    "zero": (lambda x: x.zero_(), (vector(),), (0, N)),
    "fill": (lambda x: x.fill_(3.0), (vector(),), (0, N)),
    "fill with a tensor": (lambda x, y: x.fill_(y), (vector(), torch.ones(())), (4, N)),
    "zero of a list": (lambda x: aten._foreach_zero_([x, x]), (vector(),), (0, 2 * N)),
    # random
    "random": (lambda: torch.rand(1000), (), (0, N)),
    "random like": (torch.rand_like, (vector(),), (0, N)),
    "uniform": (lambda x: x.uniform_(), (vector(),), (0, N)),
    "normal in place": (lambda x: x.normal_(), (vector(),), (0, N)),
    "normal around means": (lambda x: torch.normal(x, 1.0), (vector(),), (N, N)),
    "coins": (torch.bernoulli, (vector(),), (N, N)),
    "coins of one probability": (lambda x: torch.bernoulli(x, 0.5), (vector(),), (0, N)),
    "coins in place": (lambda x: x.bernoulli_(0.5), (vector(),), (0, N)),
    "coins in place, by probabilities": (
        lambda x, p: x.bernoulli_(p),
        (vector(), vector()),
        (N, N),
    ),
    # lists
    "lists added": (lambda x, y: torch._foreach_add([x], [y]), (vector(), vector()), (2 * N, N)),
    "lists added in place": (
        lambda x, y: torch._foreach_add_([x, x], [y, y]),
        (vector(), vector()),
        (4 * N, 2 * N),
    ),
    "norm of lists": (lambda x: torch._foreach_norm([x]), (vector(),), (N, 4)),
    "gradients without their scale": (
        lambda x, found, scale: torch._amp_foreach_non_finite_check_and_unscale_([x], found, scale),
        (vector(), torch.zeros(1), torch.ones(1)),
        (N + 4 + 4, N + 4),
    ),
}
