"""A model with a cache continues where it was; without it, it is what it was."""

import copy

import numpy as np
import pytest
from torch_twins import randomise

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.dispatch import recording
from tinytorch.core.embeddings import PositionalEmbedding, SinusoidalEncoding
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, TransformerBlock
from tinytorch.errors import CacheFullError, SettingError, ShapeError, TokenError
from tinytorch.models.adapter import stamping_layers
from tinytorch.transforms.kv_cache import disable_kv_cache, enable_kv_cache

VOCABULARY, TIME, WIDTH = 17, 12, 8
CHUNKS = [(0, 5), (5, 8), (8, 9), (9, 12)]


class Wrapper(Module):
    """A model of somebody else around a GPT."""

    def __init__(self, gpt):
        self.gpt = gpt

    def forward(self, tokens):
        return self.gpt(tokens) * 2.0


class Choosy(Module):
    """Calls its layers as often as it is told."""

    def __init__(self):
        self.first = MultiHeadAttention(WIDTH, 2, causal=True, rng=0)
        self.second = MultiHeadAttention(WIDTH, 2, causal=True, rng=1)

    def forward(self, x, times=(1, 1)):
        for layer, count in zip((self.first, self.second), times, strict=True):
            for _ in range(count):
                x = layer(x)
        return x


def small_gpt(**settings):
    model = GPT(VOCABULARY, 16, 2, 4, TIME, rng=0, **settings)
    randomise(model, np.random.default_rng(0), scale=0.3)
    return model.eval()


def blocks(**settings):
    layers = [TransformerBlock(WIDTH, 2, causal=True, rng=seed, **settings) for seed in range(3)]
    return Sequential(*layers, Linear(WIDTH, 3, rng=0))


def with_positions(kind):
    return Sequential(kind, blocks())


MODELS = {
    "learned positions": lambda: with_positions(PositionalEmbedding(TIME, WIDTH, rng=0)),
    "waves": lambda: with_positions(SinusoidalEncoding(TIME, WIDTH)),
    "GPT": small_gpt,
    "windowed GPT": lambda: small_gpt(window=4),
    "GPT inside": lambda: Wrapper(small_gpt()),
    "blocks": blocks,
    "windowed blocks": lambda: blocks(window=4),
    "one block": lambda: TransformerBlock(WIDTH, 2, causal=True, rng=0),
    "attention": lambda: MultiHeadAttention(WIDTH, 2, causal=True, rng=0),
}


def inputs_of(name, rng, batch=2):
    if "GPT" in name:
        return rng.integers(0, VOCABULARY, (batch, TIME))
    return Tensor(rng.standard_normal((batch, TIME, WIDTH)).astype(np.float32))


@pytest.mark.parametrize("name", MODELS)
def test_calls_with_new_tokens_are_one_call_with_all(name, rng):
    model, x = MODELS[name](), inputs_of(name, rng)
    wanted = model(x).data
    cache = enable_kv_cache(model, batch_size=2)
    for _ in range(2):
        found = [model(x[:, start:stop]).data for start, stop in CHUNKS]
        np.testing.assert_allclose(np.concatenate(found, axis=1), wanted, rtol=0, atol=1e-5)
        assert cache.seq_pos == TIME
        cache.reset()


@pytest.mark.parametrize("name", MODELS)
def test_disabling_gives_back_the_model_exactly(name, rng):
    model, x = MODELS[name](), inputs_of(name, rng)
    wanted = model(x).data
    before = [dict(vars(module)) for module in model.modules()]
    enable_kv_cache(model, batch_size=2)
    enable_kv_cache(model, batch_size=2)  # again
    model(x[:, :3])
    disable_kv_cache(model)
    assert [dict(vars(module)) for module in model.modules()] == before
    np.testing.assert_array_equal(model(x).data, wanted)
    disable_kv_cache(model)  # again, and without any
    assert [dict(vars(module)) for module in model.modules()] == before


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_has_a_cache_of_its_own(name, rng):
    model, x = MODELS[name](), inputs_of(name, rng)
    wanted = model(x).data
    cache = enable_kv_cache(model, batch_size=2)
    model(x[:, :5])
    twin = copy.deepcopy(model)
    model(x[:, :4])
    assert cache.seq_pos == 9
    np.testing.assert_allclose(twin(x[:, 5:]).data, wanted[:, 5:], rtol=0, atol=1e-5)
    disable_kv_cache(twin)
    np.testing.assert_array_equal(twin(x).data, wanted)


def test_rows_may_begin_at_different_times(rng):
    model, x = MODELS["learned positions"](), inputs_of("", rng)
    cache = enable_kv_cache(model, batch_size=2)
    cache.reset(padding=[3, 0])
    found = np.concatenate([model(x[:, :5]).data, model(x[:, 5:]).data], axis=1)
    disable_kv_cache(model)
    np.testing.assert_allclose(found[0, 3:], model(x[0, 3:]).data, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1], model(x[1]).data, rtol=0, atol=1e-5)


def test_enabling_again_begins_with_an_empty_cache(rng):
    model, ids = small_gpt(), rng.integers(0, VOCABULARY, (1, 5))
    first = enable_kv_cache(model)
    model(ids)
    second = enable_kv_cache(model)
    assert (first.seq_pos, second.seq_pos) == (5, 0)
    model(ids)
    assert (first.seq_pos, second.seq_pos) == (5, 5)


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_has_its_own_cache(use_cache, rng):
    model, prompt = small_gpt(), rng.integers(0, VOCABULARY, 4)
    wanted = model.generate(prompt, 14).data
    cache = enable_kv_cache(model)
    model(prompt[:2])
    found = model.generate(prompt, 14, use_cache=use_cache).data  # past the longest sequence
    np.testing.assert_array_equal(found, wanted)
    assert cache.seq_pos == 2
    model(prompt[2:])
    assert cache.seq_pos == 4  # still enabled


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_is_plain_also_when_somebody_watches_the_model(use_cache, rng):
    model, prompt = small_gpt(), rng.integers(0, VOCABULARY, 4)
    wanted = model.generate(prompt, 14).data
    cache = enable_kv_cache(model)
    modules = dict(model.named_modules())
    with stamping_layers(modules, lambda: 0, methods=("forward", "forward_with_cache")):
        found = model.generate(prompt, 14, use_cache=use_cache).data
        model(prompt)
    np.testing.assert_array_equal(found, wanted)
    assert cache.seq_pos == 4


@pytest.mark.parametrize("name", ["GPT", "blocks", "attention"])
def test_hooks_and_recorders_see_each_call_once(name, rng):
    model, x = MODELS[name](), inputs_of(name, rng)
    enable_kv_cache(model, batch_size=2)
    seen, calls = [], []
    model.register_forward_hook(lambda module, inputs, output: seen.append(1))
    with recording(calls.append):
        model(x)
    assert seen == [1]
    kinds = [call.kind for call in calls]
    assert kinds.count("attention") == {"GPT": 2, "blocks": 3, "attention": 1}[name]


def test_one_attention_takes_one_sequence_without_a_batch(rng):
    layer = MODELS["attention"]()
    x = Tensor(rng.standard_normal((6, WIDTH)).astype(np.float32))
    wanted = layer(x).data
    enable_kv_cache(layer)
    found = np.concatenate([layer(x[:4]).data, layer(x[4:]).data])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_there_is_no_graph(rng):
    model = blocks()
    enable_kv_cache(model, batch_size=2)
    assert model(inputs_of("blocks", rng)).creator is None


def test_the_cache_follows_the_dtype_and_the_length(rng):
    cache = enable_kv_cache(blocks().astype(np.float64), max_seq_len=5)
    assert (cache.dtype, cache.max_seq_len, cache.num_layers) == (np.float64, 5, 3)


# ---------------------------------------------------------------- bad input


def test_a_full_cache_says_so(rng):
    model = blocks()
    cache = enable_kv_cache(model, batch_size=2, max_seq_len=5)
    x = inputs_of("blocks", rng)
    model(x[:, :4])
    with pytest.raises(CacheFullError, match="the cache is full: at position 4 of 5"):
        model(x[:, 4:8])
    model(x[:, 4:5])  # nothing is lost by the failure
    assert cache.seq_pos == 5


def test_a_batch_that_does_not_match_is_an_error(rng):
    model = small_gpt()
    enable_kv_cache(model)
    with pytest.raises(ShapeError, match="batch_size=1 instead of 2"):
        model(rng.integers(0, VOCABULARY, (2, 3)))


def test_a_wrong_token_is_an_error():
    model = small_gpt()
    cache = enable_kv_cache(model)
    with pytest.raises(TokenError, match="17 is outside"):
        model([[17]])
    assert cache.seq_pos == 0


def test_a_model_without_attention_is_an_error():
    with pytest.raises(SettingError, match="Sequential has no attention layer, so there is noth"):
        enable_kv_cache(Sequential(Linear(2, 2)))
    with pytest.raises(SettingError, match=r"takes models of tinytorch\.core, got function"):
        enable_kv_cache(lambda x: x)


def test_attention_that_looks_ahead_is_an_error_that_names_it():
    model = Sequential(TransformerBlock(WIDTH, 2, causal=True), TransformerBlock(WIDTH, 2))
    with pytest.raises(SettingError, match=r"attention 'layers\.1\.attention' is not causal"):
        enable_kv_cache(model)


def test_layers_of_different_shapes_and_several_models_are_errors():
    heads = Sequential(*(MultiHeadAttention(WIDTH, heads, causal=True) for heads in (1, 2)))
    with pytest.raises(SettingError, match=r"\(1, 8, None\), \(2, 4, None\); enable it for each"):
        enable_kv_cache(heads)
    with pytest.raises(SettingError, match=r"found 'layers\.0', 'layers\.1'; enable it for each"):
        enable_kv_cache(Sequential(small_gpt(), small_gpt()))


def test_a_mask_is_an_error(rng):
    block = MODELS["one block"]()
    enable_kv_cache(block, batch_size=2)
    with pytest.raises(SettingError, match="takes no mask"):
        block(inputs_of("one block", rng), np.ones((TIME, TIME)))


@pytest.mark.parametrize(
    ("times", "message"),
    [((2, 1), "attention 'first' ran twice in one pass"), ((1, 0), "'second' did not run in this")],
)
def test_layers_that_do_not_run_once_are_an_error(times, message, rng):
    model = Choosy()
    cache = enable_kv_cache(model, batch_size=2)
    x = inputs_of("", rng)
    with pytest.raises(SettingError, match=message):
        model(x, times)
    assert cache.seq_pos == 0
    model(x)
    assert cache.seq_pos == TIME
