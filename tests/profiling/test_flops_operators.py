"""Products of matrices and convolutions, in all the ways that PyTorch offers them."""

import pytest
from flop_cases import as_model, normal
from flop_formulas import contraction, convolution, positions, transposed_convolution
from parts import require_part

from tinytorch.profiling.flops import count_flops

torch = require_part("torch")
nn, F = torch.nn, torch.nn.functional

# Products


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("leading", [(), (3,), (3, 5), (2, 3, 5), (0,)], ids=str)
def test_a_linear_layer_costs_its_matrix_for_every_row(leading, bias):
    layer, x = nn.Linear(7, 11, bias=bias), normal(*leading, 7)
    truth = contraction(*leading, 7, 11)
    assert count_flops(layer, x) == truth
    assert count_flops(as_model(F.linear), x, layer.weight, layer.bias) == truth


MATMULS = [
    ("vector @ vector", (7,), (7,), contraction(7)),
    ("matrix @ vector", (5, 7), (7,), contraction(5, 7)),
    ("vector @ matrix", (7,), (7, 11), contraction(7, 11)),
    ("matrix @ matrix", (5, 7), (7, 11), contraction(5, 7, 11)),
    ("batch @ vector", (3, 5, 7), (7,), contraction(3, 5, 7)),
    ("vector @ batch", (7,), (3, 7, 11), contraction(3, 7, 11)),
    ("batch @ matrix", (3, 5, 7), (7, 11), contraction(3, 5, 7, 11)),
    ("matrix @ batch", (5, 7), (3, 7, 11), contraction(3, 5, 7, 11)),
    ("batch @ batch", (3, 5, 7), (3, 7, 11), contraction(3, 5, 7, 11)),
    ("both broadcast", (3, 1, 5, 7), (2, 7, 11), contraction(3, 2, 5, 7, 11)),
    ("4-D @ matrix", (2, 3, 5, 7), (7, 11), contraction(2, 3, 5, 7, 11)),
    ("4-D @ 3-D", (2, 3, 5, 7), (3, 7, 11), contraction(2, 3, 5, 7, 11)),
    ("inner axis of one", (5, 1), (1, 11), contraction(5, 1, 11)),
    ("empty inner axis", (5, 0), (0, 11), 0),
]


@pytest.mark.parametrize(
    ("left", "right", "truth"), [m[1:] for m in MATMULS], ids=[m[0] for m in MATMULS]
)
def test_matmul_costs_the_inner_axis_for_every_element_of_the_broadcast_result(left, right, truth):
    model = as_model(lambda x, y: x @ y)
    assert count_flops(model, normal(*left), normal(*right)) == truth


# Two operands are contracted over all indices that only the operands have. An index that a single
# operand has is summed before that, and without an index to sum over PyTorch multiplies element by
# element: no accumulation, no contraction.
EINSUMS = [
    ("bij,bjk->bik", [(3, 5, 7), (3, 7, 11)], contraction(3, 5, 7, 11)),
    ("bqhd,bkhd->bhqk", [(3, 5, 2, 7), (3, 11, 2, 7)], contraction(3, 5, 2, 7, 11)),
    ("bhqk,bkhd->bqhd", [(3, 2, 5, 11), (3, 11, 2, 7)], contraction(3, 2, 5, 11, 7)),
    ("...i,oi->...o", [(3, 5, 7), (11, 7)], contraction(3, 5, 7, 11)),
    ("i,i->", [(7,), (7,)], contraction(7)),
    ("ij,ij->", [(5, 7), (5, 7)], contraction(5, 7)),
    ("bi,bi->b", [(5, 7), (5, 7)], contraction(5, 7)),
    ("bij,jk->bk", [(3, 5, 7), (7, 11)], contraction(3, 7, 11)),
    ("ij,jk,kl->il", [(2, 3), (3, 5), (5, 7)], contraction(2, 3, 5) + contraction(2, 5, 7)),
    (
        "bn,anm,bm->ba",
        [(2, 7), (3, 7, 5), (2, 5)],
        contraction(2, 7, 3, 5) + contraction(2, 3, 5),
    ),
    ("i,j->ij", [(5,), (7,)], 0),
    ("bi,bj->bij", [(3, 5), (3, 7)], 0),
    ("bi,i->bi", [(3, 5), (5,)], 0),
    ("ij->j", [(5, 7)], 0),
    ("ii->", [(5, 5)], 0),
]


@pytest.mark.parametrize(("equation", "shapes", "truth"), EINSUMS, ids=[e[0] for e in EINSUMS])
def test_einsum_costs_its_contractions(equation, shapes, truth):
    model = as_model(lambda *operands: torch.einsum(equation, *operands))
    assert count_flops(model, *(normal(*shape) for shape in shapes)) == truth


FUNCTIONS = [
    ("dot", torch.dot, [(7,), (7,)], contraction(7)),
    ("vdot", torch.vdot, [(7,), (7,)], contraction(7)),
    ("inner", torch.inner, [(3, 7), (5, 7)], contraction(3, 7, 5)),
    ("mv", torch.mv, [(5, 7), (7,)], contraction(5, 7)),
    ("addmv", torch.addmv, [(5,), (5, 7), (7,)], contraction(5, 7)),
    ("mm", torch.mm, [(5, 7), (7, 11)], contraction(5, 7, 11)),
    ("addmm", torch.addmm, [(11,), (5, 7), (7, 11)], contraction(5, 7, 11)),
    ("bmm", torch.bmm, [(3, 5, 7), (3, 7, 11)], contraction(3, 5, 7, 11)),
    ("baddbmm", torch.baddbmm, [(3, 1, 11), (3, 5, 7), (3, 7, 11)], contraction(3, 5, 7, 11)),
    ("addbmm", torch.addbmm, [(5, 11), (3, 5, 7), (3, 7, 11)], contraction(3, 5, 7, 11)),
    (
        "tensordot over two axes",
        lambda x, y: torch.tensordot(x, y, dims=([1, 2], [1, 0])),
        [(3, 5, 7), (7, 5, 11)],
        contraction(3, 5, 7, 11),
    ),
    (  # (3x20 20x2) first: 120 + 3 * 2 * 30 multiply-accumulates, against 1200 + 1800
        "multi_dot in the cheapest order, from the left",
        lambda *chain: torch.linalg.multi_dot(chain),
        [(3, 20), (20, 2), (2, 30)],
        contraction(3, 20, 2) + contraction(3, 2, 30),
    ),
    (
        "multi_dot in the cheapest order, from the right",
        lambda *chain: torch.linalg.multi_dot(chain),
        [(30, 2), (2, 20), (20, 3), (3,)],
        contraction(20, 3) + contraction(2, 20) + contraction(30, 2),
    ),
    ("matrix_power", lambda x: torch.matrix_power(x, 5), [(7, 7)], 3 * contraction(7, 7, 7)),
    (  # for each output the first operand is contracted with a matrix, the rest with the second
        "bilinear",
        F.bilinear,
        [(3, 5), (3, 7), (11, 5, 7)],
        contraction(3, 11, 5, 7) + contraction(3, 11, 7),
    ),
    (
        "unfold and matmul, which is a convolution",
        lambda x, w: w.flatten(1) @ F.unfold(x, (3, 2)),
        [(2, 4, 9, 8), (6, 4, 3, 2)],
        convolution(2, (6, 4), (3, 2), (7, 7)),
    ),
    (
        "mm into a given array",
        lambda x, y: torch.mm(x, y, out=torch.empty(5, 11)),
        [(5, 7), (7, 11)],
        contraction(5, 7, 11),
    ),
    (
        "addmm in place",
        lambda x, y: torch.zeros(5, 11).addmm_(x, y),
        [(5, 7), (7, 11)],
        contraction(5, 7, 11),
    ),
    (
        "addmm with an activation",
        torch._addmm_activation,
        [(11,), (5, 7), (7, 11)],
        contraction(5, 7, 11),
    ),
    (  # many distances are one product of rows that carry their own squared length, and a one
        "distances of many points",
        torch.cdist,
        [(30, 4), (40, 4)],
        contraction(30, 4 + 2, 40),
    ),
    ("distances of few points, by differences", torch.cdist, [(10, 4), (20, 4)], 0),
    ("vecdot, an elementwise product and a sum", torch.linalg.vecdot, [(5, 7), (5, 7)], 0),
    ("outer", torch.outer, [(5,), (7,)], 0),
    ("addr", torch.addr, [(5, 7), (5,), (7,)], 0),
    ("kron", torch.kron, [(2, 3), (5, 7)], 0),
    ("elementwise, norm and softmax", lambda x: F.layer_norm(x * x, (7,)).softmax(-1), [(5, 7)], 0),
]


@pytest.mark.parametrize(
    ("function", "shapes", "truth"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS]
)
def test_a_function_costs_what_it_contracts(function, shapes, truth):
    assert count_flops(as_model(function), *(normal(*shape) for shape in shapes)) == truth


def test_an_embedding_is_looked_up_and_costs_nothing():
    assert count_flops(nn.Embedding(11, 7), torch.tensor([[1, 2, 3]])) == 0
    assert count_flops(nn.EmbeddingBag(11, 7), torch.tensor([[1, 2, 3]])) == 0


def test_integers_are_multiplied_and_accumulated_too():
    left, right = torch.ones(19, 24, dtype=torch.int64), torch.ones(24, 16, dtype=torch.int64)
    truth = contraction(19, 24, 16)
    assert count_flops(as_model(torch.mm), left, right) == truth
    assert count_flops(as_model(torch._int_mm), left.char(), right.char()) == truth


def test_quantized_weights_are_multiplied_as_often_as_others():
    x, scales = normal(4, 64).bfloat16(), torch.ones(32).bfloat16()
    truth = contraction(4, 64, 32)
    weight = torch.ones(32, 64, dtype=torch.int8)
    assert count_flops(as_model(torch._weight_int8pack_mm), x, weight, scales) == truth
    packed = torch._convert_weight_to_int4pack_for_cpu(weight.int(), 1)
    groups = torch.ones(2, 32, 2).bfloat16()
    four_bits = as_model(lambda x, w, s: torch._weight_int4pack_mm_for_cpu(x, w, 32, s))
    assert count_flops(four_bits, x, packed, groups) == truth


# `offs` says where each group ends: (left, right, ends, truth)
GROUPED = {
    "rows": ((10, 16), (3, 16, 24), [3, 5, 10], contraction(10, 16, 24)),
    "rows, and some of no group": ((10, 16), (3, 16, 24), [3, 3, 5], contraction(5, 16, 24)),
    "inner axis": ((10, 16), (16, 24), [4, 8, 16], contraction(10, 16, 24)),
    "batch": ((3, 10, 16), (3, 16, 24), None, contraction(3, 10, 16, 24)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_product_costs_what_lies_in_its_groups(name):
    left, right, ends, truth = GROUPED[name]
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    model = as_model(lambda x, y: F.grouped_mm(x, y, offs=offs))
    assert count_flops(model, normal(*left).bfloat16(), normal(*right).bfloat16()) == truth


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_precision_does_not_change_the_count(dtype):
    x = normal(3, 5, 7).to(dtype)
    assert count_flops(nn.Linear(7, 11).to(dtype), x) == contraction(3, 5, 7, 11)


def test_a_complex_multiply_accumulate_is_one():
    """Four real products and four sums are hidden in it: the number says how many, not how long."""
    left, right = normal(5, 7).to(torch.complex64), normal(7, 11).to(torch.complex64)
    assert count_flops(as_model(torch.matmul), left, right) == contraction(5, 7, 11)


# Convolutions: (layer, input, truth)

CONVOLUTIONS = {
    "1-D, stride, padding, dilation": (
        nn.Conv1d(4, 6, 5, stride=3, padding=2, dilation=2),
        (3, 4, 23),
        convolution(3, (6, 4), (5,), positions((23,), (5,), stride=3, padding=2, dilation=2)),
    ),
    "2-D": (nn.Conv2d(4, 6, (3, 5)), (2, 4, 9, 11), convolution(2, (6, 4), (3, 5), (7, 7))),
    "2-D without bias": (
        nn.Conv2d(4, 6, 3, bias=False),
        (2, 4, 9, 11),
        convolution(2, (6, 4), (3, 3), (7, 9)),
    ),
    "padded taps count": (
        nn.Conv2d(4, 6, 3, padding=1),
        (2, 4, 9, 11),
        convolution(2, (6, 4), (3, 3), (9, 11)),
    ),
    "2-D, stride and dilation": (
        nn.Conv2d(4, 6, 3, stride=2, padding=3, dilation=2),
        (2, 4, 10, 13),
        convolution(2, (6, 4), (3, 3), (6, 8)),
    ),
    "1x1": (nn.Conv2d(4, 6, 1), (2, 4, 9, 11), convolution(2, (6, 4), (1, 1), (9, 11))),
    "3-D": (
        nn.Conv3d(2, 3, (2, 3, 4), stride=2),
        (2, 2, 8, 9, 10),
        convolution(2, (3, 2), (2, 3, 4), (4, 4, 4)),
    ),
    "groups": (
        nn.Conv2d(6, 9, 3, groups=3),
        (2, 6, 9, 11),
        convolution(2, (9, 2), (3, 3), (7, 9)),
    ),
    "depthwise": (
        nn.Conv2d(6, 6, 3, groups=6),
        (2, 6, 9, 11),
        convolution(2, (6, 1), (3, 3), (7, 9)),
    ),
    "depthwise, two outputs for each channel": (
        nn.Conv2d(6, 12, 3, groups=6),
        (2, 6, 9, 11),
        convolution(2, (12, 1), (3, 3), (7, 9)),
    ),
    "circular padding": (
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
        (2, 4, 9, 11),
        convolution(2, (6, 4), (3, 3), (9, 11)),
    ),
    "padding same": (
        nn.Conv1d(4, 6, 5, padding="same", dilation=2),
        (2, 4, 9),
        convolution(2, (6, 4), (5,), (9,)),
    ),
    "padding valid": (
        nn.Conv1d(4, 6, 5, padding="valid"),
        (2, 4, 9),
        convolution(2, (6, 4), (5,), (5,)),
    ),
    "one image": (nn.Conv2d(4, 6, 3), (4, 9, 11), convolution(1, (6, 4), (3, 3), (7, 9))),
    "transposed 1-D": (
        nn.ConvTranspose1d(4, 6, 5, stride=3),
        (3, 4, 7),
        transposed_convolution(3, (4, 6), (5,), (7,)),
    ),
    "transposed 2-D, stride, padding, output padding": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        (2, 4, 5, 7),
        transposed_convolution(2, (4, 6), (3, 3), (5, 7)),
    ),
    "transposed 2-D, groups and dilation": (
        nn.ConvTranspose2d(6, 9, (2, 3), groups=3, dilation=2),
        (2, 6, 5, 7),
        transposed_convolution(2, (6, 3), (2, 3), (5, 7)),
    ),
    "transposed 3-D": (
        nn.ConvTranspose3d(2, 3, 2, stride=2),
        (2, 2, 3, 4, 5),
        transposed_convolution(2, (2, 3), (2, 2, 2), (3, 4, 5)),
    ),
    "transposed, one image": (
        nn.ConvTranspose2d(4, 6, 3, stride=2),
        (4, 5, 7),
        transposed_convolution(1, (4, 6), (3, 3), (5, 7)),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_costs_every_tap_at_every_position(name):
    layer, shape, truth = CONVOLUTIONS[name]
    assert count_flops(layer, normal(*shape)) == truth


def test_a_convolution_with_time_first_costs_the_same():
    inputs = normal(11, 2, 4), normal(3, 4, 6), normal(6)
    truth = convolution(2, (6, 4), (3,), (9,))
    assert count_flops(as_model(torch.conv_tbc), *inputs) == truth


def test_a_convolution_as_a_function_costs_the_same():
    x, weight = normal(2, 4, 9, 11), normal(6, 2, 3, 3)
    truth = convolution(2, (6, 2), (3, 3), (9, 11))
    assert count_flops(as_model(F.conv2d), x, weight, padding=1, groups=2) == truth
    assert count_flops(as_model(torch.conv2d), x, weight, padding="same", groups=2) == truth
