"""Attention: as a function, as a layer, and inside of PyTorch's transformers."""

from contextlib import contextmanager

import pytest
from flop_cases import as_model, normal
from flop_formulas import attention, attention_layer, contraction, feed_forward
from parts import require_part

from tinytorch.profiling.flops import count_flops

torch = require_part("torch")
nn = torch.nn
sdpa = nn.functional.scaled_dot_product_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 6, 5, 7, 8
PLAIN = attention(BATCH, HEADS, QUERIES, KEYS, width=WIDTH)


def heads(count, time, width=WIDTH):
    return normal(BATCH, count, time, width)


SDPA = {
    "plain": ((HEADS, KEYS, WIDTH), {}, PLAIN),
    "causal counts masked pairs": ((HEADS, KEYS, WIDTH), {"is_causal": True}, PLAIN),
    "boolean mask": (
        (HEADS, KEYS, WIDTH),
        {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()},
        PLAIN,
    ),
    "added mask": ((HEADS, KEYS, WIDTH), {"attn_mask": normal(BATCH, 1, QUERIES, KEYS)}, PLAIN),
    "dropout of zero": ((HEADS, KEYS, WIDTH), {"dropout_p": 0.0}, PLAIN),
    "dropout": ((HEADS, KEYS, WIDTH), {"dropout_p": 0.25}, PLAIN),
    "grouped queries": ((2, KEYS, WIDTH), {"enable_gqa": True}, PLAIN),
    "wide values": (
        (HEADS, KEYS, 11),
        {},
        attention(BATCH, HEADS, QUERIES, KEYS, width=WIDTH, value_width=11),
    ),
}


@pytest.mark.parametrize("name", SDPA)
def test_attention_costs_two_products_for_each_pair_of_query_and_key(name):
    (count, keys, value_width), options, truth = SDPA[name]
    inputs = heads(HEADS, QUERIES), heads(count, keys), heads(count, keys, value_width)
    assert count_flops(as_model(sdpa), *inputs, **options) == truth


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("name", [name for name in SDPA if name not in ("wide values", "dropout")])
def test_every_kernel_of_attention_costs_the_same(name, backend):
    (count, keys, value_width), options, truth = SDPA[name]
    inputs = heads(HEADS, QUERIES), heads(count, keys), heads(count, keys, value_width)
    chosen = getattr(nn.attention.SDPBackend, backend)
    with nn.attention.sdpa_kernel(chosen):
        assert count_flops(as_model(sdpa), *inputs, **options) == truth


def test_attention_without_heads_or_batch_costs_its_pairs():
    truth = attention(BATCH, 1, QUERIES, KEYS, width=WIDTH)
    query, key = normal(BATCH, QUERIES, WIDTH), normal(BATCH, KEYS, WIDTH)
    assert count_flops(as_model(sdpa), query, key, key) == truth
    assert count_flops(as_model(sdpa), query[0], key[0], key[0]) == truth // BATCH


# MultiheadAttention. With batch_first, in eval mode and without gradients, PyTorch runs self
# attention as one fused operation; in train mode, and across, it does not.

EMBED, NUM_HEADS, TIME = 24, 4, 7
SELF = attention_layer(BATCH, TIME, TIME, EMBED, heads=NUM_HEADS)


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])
def test_self_attention_costs_the_same_on_every_path(batch_first, training, need_weights):
    layer = nn.MultiheadAttention(EMBED, NUM_HEADS, batch_first=batch_first).train(training)
    x = normal(*((BATCH, TIME) if batch_first else (TIME, BATCH)), EMBED)
    assert count_flops(layer, x, x, x, need_weights=need_weights) == SELF


def test_self_attention_of_one_sequence_is_not_a_batch():
    layer = nn.MultiheadAttention(EMBED, NUM_HEADS, batch_first=True).eval()
    x = normal(TIME, EMBED)
    assert count_flops(layer, x, x, x) == SELF // BATCH


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
def test_cross_attention_projects_as_many_keys_as_there_are(need_weights):
    layer = nn.MultiheadAttention(EMBED, NUM_HEADS, batch_first=True).eval()
    query, key = normal(BATCH, QUERIES, EMBED), normal(BATCH, TIME, EMBED)
    truth = attention_layer(BATCH, QUERIES, TIME, EMBED, heads=NUM_HEADS)
    assert count_flops(layer, query, key, key, need_weights=need_weights) == truth


def test_keys_and_values_of_other_widths_are_projected_from_those():
    layer = nn.MultiheadAttention(EMBED, NUM_HEADS, kdim=10, vdim=13, batch_first=True).eval()
    inputs = normal(BATCH, QUERIES, EMBED), normal(BATCH, TIME, 10), normal(BATCH, TIME, 13)
    truth = (
        2 * contraction(BATCH, QUERIES, EMBED, EMBED)
        + contraction(BATCH, TIME, 10 + 13, EMBED)
        + attention(BATCH, NUM_HEADS, QUERIES, TIME, width=EMBED // NUM_HEADS)
    )
    assert count_flops(layer, *inputs) == truth


def test_added_keys_are_attended_to_but_not_projected():
    layer = nn.MultiheadAttention(
        EMBED, NUM_HEADS, add_bias_kv=True, add_zero_attn=True, batch_first=True
    ).eval()
    x = normal(BATCH, TIME, EMBED)
    truth = 4 * contraction(BATCH, TIME, EMBED, EMBED)
    truth += attention(BATCH, NUM_HEADS, TIME, TIME + 2, width=EMBED // NUM_HEADS)
    assert count_flops(layer, x, x, x) == truth


# Transformers

HIDDEN, TARGET = 52, 5
ENCODER_LAYER = SELF + feed_forward(BATCH * TIME, EMBED, HIDDEN)
DECODER_LAYER = (
    attention_layer(BATCH, TARGET, TARGET, EMBED, heads=NUM_HEADS)
    + attention_layer(BATCH, TARGET, TIME, EMBED, heads=NUM_HEADS)
    + feed_forward(BATCH * TARGET, EMBED, HIDDEN)
)


@contextmanager
def fast_path(enabled):
    previous = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(previous)


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(EMBED, NUM_HEADS, HIDDEN, batch_first=True, **options).eval()


@pytest.mark.parametrize("enabled", [True, False], ids=["fast path", "slow path"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_costs_the_same_on_every_path(activation, norm_first, enabled):
    layer = encoder_layer(activation=activation, norm_first=norm_first)
    with fast_path(enabled):
        assert count_flops(layer, normal(BATCH, TIME, EMBED)) == ENCODER_LAYER


def test_an_encoder_layer_in_training_mode_costs_the_same():
    layer = encoder_layer().train()
    assert count_flops(layer, normal(BATCH, TIME, EMBED)) == ENCODER_LAYER


def padding(*lengths):
    return torch.arange(TIME) >= torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("enabled", [True, False], ids=["fast path", "slow path"])
def test_an_encoder_layer_alone_computes_the_padding(enabled):
    with fast_path(enabled):
        layer, x = encoder_layer(), normal(BATCH, TIME, EMBED)
        assert count_flops(layer, x, src_key_padding_mask=padding(5, 3)) == ENCODER_LAYER


def test_an_encoder_on_the_slow_path_computes_the_padding():
    encoder, x = nn.TransformerEncoder(encoder_layer(), 3).eval(), normal(BATCH, TIME, EMBED)
    with fast_path(False):
        assert count_flops(encoder, x, src_key_padding_mask=padding(5, 3)) == 3 * ENCODER_LAYER


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_an_encoder_on_the_fast_path_leaves_padding_out():
    """A ragged batch: projections see real tokens; attention, the batch up to the longest."""
    encoder, x = nn.TransformerEncoder(encoder_layer(), 3).eval(), normal(BATCH, TIME, EMBED)
    truth = 4 * contraction(5 + 3, EMBED, EMBED) + feed_forward(5 + 3, EMBED, HIDDEN)
    truth += attention(BATCH, NUM_HEADS, 5, 5, width=EMBED // NUM_HEADS)
    with fast_path(True):
        assert count_flops(encoder, x, src_key_padding_mask=padding(5, 3)) == 3 * truth


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_decoder_layer_attends_to_itself_and_across(training):
    layer = nn.TransformerDecoderLayer(EMBED, NUM_HEADS, HIDDEN, batch_first=True).train(training)
    target, memory = normal(BATCH, TARGET, EMBED), normal(BATCH, TIME, EMBED)
    mask = nn.Transformer.generate_square_subsequent_mask(TARGET)
    assert count_flops(layer, target, memory) == DECODER_LAYER
    assert count_flops(layer, target, memory, tgt_mask=mask, tgt_is_causal=True) == DECODER_LAYER


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_transformer_is_its_encoder_and_its_decoder(training):
    model = nn.Transformer(EMBED, NUM_HEADS, 3, 2, HIDDEN, batch_first=True).train(training)
    source, target = normal(BATCH, TIME, EMBED), normal(BATCH, TARGET, EMBED)
    assert count_flops(model, source, target) == 3 * ENCODER_LAYER + 2 * DECODER_LAYER
