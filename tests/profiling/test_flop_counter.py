import pytest
from classic_models import (
    BATCH,
    HIDDEN,
    INPUTS,
    KINDS,
    MACS_PER_SAMPLE,
    OUTPUTS,
    leaving_no_trace,
    make_model,
)
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import GELU, Linear, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import ModelError, SettingError
from tinytorch.profiling.flops import FLOPCounter, count_flops, example_inputs

SIZES = st.integers(1, 12)


def counted(layer, *shape):
    """Count the multiply-accumulates of a real layer: contractions, without biases."""
    return count_flops(layer, *example_inputs(layer, shape)) // 2


# ---------------------------------------------------------------- closed forms


def test_a_linear_layer_is_products_plus_biases():
    assert FLOPCounter().count_linear(100, 50, batch_size=32) == 32 * 100 * 50 + 32 * 50


def test_in_flops_a_multiply_accumulate_counts_twice_and_a_bias_once():
    counter = FLOPCounter(convention="flops")
    assert counter.count_linear(100, 50, batch_size=32) == 2 * 32 * 100 * 50 + 32 * 50


@given(SIZES, SIZES, SIZES)
def test_linear_agrees_with_a_layer_that_runs(inputs, outputs, batch):
    layer = Linear(inputs, outputs)
    total = FLOPCounter().count_linear(inputs, outputs, batch_size=batch)
    assert total - batch * outputs == counted(layer, batch, inputs)
    assert total == FLOPCounter().count_model_forward(layer, (batch, inputs))


@given(
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    groups=st.integers(1, 2),
    dilation=st.integers(1, 2),
    batch=st.integers(1, 3),
)
def test_conv2d_agrees_with_a_layer_that_runs(
    height, width, kernel, stride, padding, groups, dilation, batch
):
    settings = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
    layer = Conv2d(4, 6, kernel, **settings)
    shape = (batch, 4, height, width)
    counter = FLOPCounter()
    total = counter.count_conv2d(height, width, 4, 6, kernel, batch, **settings)
    positions = layer(Tensor([[[[0.0] * width] * height] * 4] * batch)).data.size
    assert total - positions == counted(layer, *shape)
    assert total == FLOPCounter().count_model_forward(layer, shape)


def test_conv2d_takes_pairs():
    square = FLOPCounter().count_conv2d(8, 9, 3, 5, kernel_size=3, padding=1)
    pairs = FLOPCounter().count_conv2d(8, 9, 3, 5, kernel_size=(3, 3), padding=(1, 1))
    assert square == pairs == 8 * 9 * 5 * 3 * 3 * 3 + 8 * 9 * 5


@given(length=st.integers(1, 9), heads=st.integers(1, 3), batch=st.integers(1, 3))
def test_attention_agrees_with_a_layer_that_runs(length, heads, batch):
    width = 4 * heads
    layer = MultiHeadAttention(width, heads)
    total = FLOPCounter().count_attention(length, width, batch_size=batch)
    assert total - 4 * batch * length * width == counted(layer, batch, length, width)
    assert total == FLOPCounter().count_model_forward(layer, (batch, length, width))


def test_attention_projects_every_token():
    total = FLOPCounter().count_attention(sequence_length=10, d_model=64)
    assert total == 4 * 10 * 64**2 + 4 * 10 * 64 + 2 * 10**2 * 64


def test_the_length_has_two_names():
    first = FLOPCounter().count_attention(10, 64, 2)
    assert first == FLOPCounter().count_attention(seq_len=10, d_model=64, batch_size=2)


@given(st.integers(1, 5000), st.integers(1, 2000))
def test_twice_the_sequence_costs_between_two_and_four_times(length, width):
    counter = FLOPCounter()
    once, twice = (counter.count_attention(each, width) for each in (length, 2 * length))
    assert 2 < twice / once < 4


def test_the_report_says_what_doubling_costs_for_these_sizes(capsys):
    counter = FLOPCounter()
    once = counter.count_attention(128, 64)
    twice = FLOPCounter().count_attention(256, 64)
    counter.print_report("attention")
    shown = " ".join(capsys.readouterr().out.split())
    assert f"twice the sequence costs {twice / once:.2f}x" in shown


@pytest.mark.parametrize("layer", ["linear", "conv2d", "attention"])
def test_biases_can_be_left_out(layer):
    sizes = {"linear": (3, 4), "conv2d": (5, 5, 3, 4, 3), "attention": (7, 4)}[layer]
    count = getattr(FLOPCounter(), f"count_{layer}")
    assert 0 < count(*sizes, bias=False) < count(*sizes)


# ---------------------------------------------------------------- adding up


@pytest.mark.parametrize("convention", ["macs", "flops"])
def test_counts_and_breakdown_add_up(convention):
    counter = FLOPCounter(convention=convention)
    totals = [
        counter.count_linear(3, 4, 2),
        counter.count_linear(4, 5, 2),
        counter.count_conv2d(6, 6, 3, 4, 3),
        counter.count_attention(5, 4),
    ]
    counts = counter.operation_counts
    assert counts["total_flops"] == sum(totals) == sum(counter.layer_breakdown.values())
    assert counts["multiply"] + counts["add"] == counts["total_flops"]
    assert counter.layer_breakdown["linear"] == totals[0] + totals[1]


def test_reset_forgets_everything():
    counter = FLOPCounter()
    counter.count_attention(5, 4)
    counter.reset()
    assert counter.operation_counts == {"multiply": 0, "add": 0, "total_flops": 0}
    assert (counter.layer_breakdown, counter.notes, counter.not_counted) == ({}, [], {})


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_really_run(kind):
    model, counter = make_model(kind), FLOPCounter()
    with leaving_no_trace(model):
        total = counter.count_model_forward(model, (BATCH, INPUTS))
    assert total == BATCH * (MACS_PER_SAMPLE + HIDDEN + OUTPUTS)
    assert counter.operation_counts["multiply"] == BATCH * MACS_PER_SAMPLE
    assert counter.not_counted == {}


def test_the_breakdown_has_the_layers_of_the_model():
    model, counter = make_model("core"), FLOPCounter()
    counter.count_model_forward(model, (BATCH, INPUTS))
    assert counter.layer_breakdown == {
        "layers.0": BATCH * (INPUTS * HIDDEN + HIDDEN),
        "layers.3": BATCH * (HIDDEN * OUTPUTS + OUTPUTS),
    }


def test_a_second_model_starts_from_nothing():
    counter = FLOPCounter()
    counter.count_model_forward(Linear(50, 60), (1, 50))
    assert counter.count_model_forward(Linear(3, 2, bias=False), (1, 3)) == 6


def test_elementwise_work_is_listed_apart():
    counter = FLOPCounter()
    total = counter.count_model_forward(Sequential(Linear(3, 2), GELU()), (5, 3))
    assert total == 5 * (3 * 2 + 2)
    assert counter.other_flops == 8 * 5 * 2  # eight operations for each element


def test_what_has_no_formula_is_listed_not_guessed(capsys):
    torch = require_part("torch")

    class Sorted(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.cholesky(x)

    counter = FLOPCounter()
    assert counter.count_model_forward(Sorted().eval(), (1, 1)) == 0
    counter.print_report("model")
    assert any("cholesky" in kind for kind in counter.not_counted)
    assert "cholesky" in capsys.readouterr().out


def test_biases_hidden_in_a_fused_layer_are_named():
    nn = require_part("torch").nn
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    counter = FLOPCounter()
    counter.count_model_forward(layer, (2, 5, 8))
    assert any(kind.startswith("biases inside") for kind in counter.not_counted)


def test_several_inputs_have_several_shapes():
    class Product:
        def forward(self, a, b):
            return a @ b

    counter = FLOPCounter()
    assert counter.count_model_forward(Product(), ((2, 3), (3, 4))) == 2 * 3 * 4


def test_a_failing_model_names_its_layer():
    with pytest.raises((ModelError, ValueError), match=r"layers\.0"):
        FLOPCounter().count_model_forward(make_model("core"), (2, INPUTS + 1))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda c: c.count_linear(0, 5), "input_features=0; it must be at least 1"),
        (lambda c: c.count_linear(2.5, 5), "input_features=2.5; it must be a whole number"),
        (lambda c: c.count_linear(2, 5, batch_size=-1), "batch_size=-1"),
        (lambda c: c.count_conv2d(5, 5, 3, 4, 7), "spans 7 does not fit into 5 with padding 0"),
        (lambda c: c.count_conv2d(5, 5, 3, 4, 3, groups=2), "groups=2 does not divide"),
        (lambda c: c.count_conv2d(5, 5, 3, 4, (3, 3, 3)), r"kernel_size=\(3, 3, 3\)"),
        (lambda c: c.count_conv2d(5, 5, 3, 4, 3, padding=-1), "padding=-1"),
        (lambda c: c.count_attention(d_model=4), "exactly one of sequence_length and seq_len"),
        (lambda c: c.count_attention(3, 4, seq_len=3), "exactly one of"),
        (lambda c: c.count_attention(3), "d_model is missing"),
        (lambda c: c.add_total(-1), "flops=-1"),
        (lambda c: c.count_model_forward(Linear, (1, 3)), "the class Linear is no model"),
        (lambda c: c.count_model_forward(3, (1, 3)), "int is no model"),
    ],
)
def test_bad_sizes_are_refused(count, message):
    with pytest.raises(SettingError, match=message):
        count(FLOPCounter())


def test_an_unknown_convention_is_refused():
    with pytest.raises(SettingError, match="convention='ops'; there are macs, flops"):
        FLOPCounter(convention="ops")


# ---------------------------------------------------------------- reports


@pytest.mark.parametrize(("convention", "word"), [("macs", "once"), ("flops", "twice")])
def test_the_report_says_in_which_convention_it_is(convention, word, capsys):
    counter = FLOPCounter(convention=convention)
    total = counter.count_linear(100, 50, 32)
    counter.print_report("layer")
    shown = capsys.readouterr().out
    assert f"a multiply-accumulate counts {word}" in shown
    assert f"{total:,}" in shown


def test_a_report_of_nothing_says_so(capsys):
    FLOPCounter().print_report("layer")
    assert "nothing was counted" in capsys.readouterr().out
