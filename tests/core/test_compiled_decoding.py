"""The compiled decoding step: the numbers of the layers, or left to them."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from parts import require_part

from tinytorch.core import decoding
from tinytorch.core.decoding import Pace
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Linear
from tinytorch.core.llama import Llama, RMSNorm, RotaryEmbedding
from tinytorch.core.module import Module
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.transformers import GPT, TransformerBlock
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize

require_part("numba")

VOCABULARY, LENGTH = 90, 24


def gpt(**settings):
    model = GPT(VOCABULARY, 32, 2, 4, LENGTH, rng=0, **settings)
    for parameter in model.parameters():  # so that no bias is 0, and none can be mixed up
        noise = np.random.default_rng(parameter.size).normal(size=parameter.shape)
        parameter.data = (parameter.data + 0.05 * noise).astype(np.float32)
    return model.eval()


def llama(**settings):
    given = {"num_kv_heads": 2, "hidden_dim": 48, "bias": True, "qk_norm": True, **settings}
    return Llama(VOCABULARY, 32, 2, 4, LENGTH, rng=0, **given).eval()


def transposed(model):
    """Give a model the layout of matrices that a checkpoint of Llama has."""
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.weight.data = np.asfortranarray(layer.weight.data)
    return model


def quantized(model, **settings):
    workload = Workload("model", model, (Tensor(np.zeros((1, 4), np.int64)),))
    transform = Quantize(**settings)
    return transform.apply(workload, transform.plan(workload))


FLOATS = {
    "GPT": gpt,
    "exact GELU": lambda: gpt(approximate="none"),
    "Llama": llama,
    "Llama, columns": lambda: transposed(llama(qk_norm=False, bias=False, num_kv_heads=1)),
    "Llama, tied": lambda: llama(tied=True, num_kv_heads=4),
}
INTEGERS = {
    "GPT, INT8": lambda: quantized(gpt(), mode="weight_only"),
    "GPT, INT8 dynamic": lambda: quantized(gpt(), mode="dynamic"),
    "Llama, INT8": lambda: quantized(llama(), mode="weight_only"),
    "GPT, INT4": lambda: quantized(gpt(), mode="weight_only", bits=4),
}


def decoded(model, ids, *, compiled=True, cache=None):
    """Return the logits of tokens that come one at a time after a prompt of four."""
    with pytest.MonkeyPatch.context() as patch, use_backend("numba"):
        if not compiled:
            patch.setattr("tinytorch.core.language_model.decode_token", lambda *_: None)
        return stepwise(model, ids, cache)


def is_compiled(model):
    """Return whether the next token is computed by the step."""
    with use_backend("numba"):
        cache = model.make_cache()
        x = model.embed(np.array([[1]]))
        return decoding.decode_token(model, x.data, cache) is not None


@pytest.fixture
def ids(rng):
    return rng.integers(0, VOCABULARY, (1, LENGTH))


def check_like_layers(make, ids):
    model = make()
    assert is_compiled(model)
    stepwise, layered = decoded(model, ids), decoded(model, ids, compiled=False)
    # the same sums in another order; logits are of size 1
    np.testing.assert_allclose(stepwise, layered, rtol=1e-4, atol=2e-5 * np.abs(layered).max())


@pytest.mark.parametrize("name", FLOATS)
def test_the_step_computes_what_the_layers_compute(name, ids):
    check_like_layers(FLOATS[name], ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_the_step_multiplies_packed_weights(name, ids):
    check_like_layers(INTEGERS[name], ids)


@pytest.mark.parametrize("name", ["GPT", "Llama"])
def test_greedy_texts_are_those_of_the_reference(name):
    model = FLOATS[name]()
    with use_backend("reference"):
        wanted = model.generate([1, 2, 3], LENGTH - 3).data
    with use_backend("numba"):
        np.testing.assert_array_equal(model.generate([1, 2, 3], LENGTH - 3).data, wanted)


def test_one_thread_and_several_give_the_same_bits(ids, monkeypatch):
    model = gpt()
    alone = decoded(model, ids)
    monkeypatch.setattr("tinytorch.core.kernels.numba.compile.PARALLEL_WORK", 0)
    for _ in range(20):
        np.testing.assert_array_equal(decoded(model, ids), alone)


def test_threads_that_share_a_model_do_not_mix_their_tokens(ids):
    model = gpt()
    rows = [np.roll(ids, shift, axis=1) for shift in range(4)]
    wanted = [decoded(model, row) for row in rows]
    with ThreadPoolExecutor(4) as pool, use_backend("numba"):
        for _ in range(5):
            found = list(pool.map(lambda row: stepwise(model, row), rows))
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def stepwise(model, ids, cache=None):
    cache = model.make_cache() if cache is None else cache
    pieces = [ids[:, :4], *(ids[:, [k]] for k in range(4, ids.shape[1]))]
    with use_backend("numba"):
        steps = [model.forward_with_cache(piece, cache)[0].data for piece in pieces]
    return np.concatenate(steps, axis=1)


def test_weights_that_change_between_tokens_count(ids):
    model, twin = gpt(), gpt()
    cache, other = model.make_cache(), twin.make_cache()
    decoded(model, ids[:, :8], cache=cache)
    decoded(twin, ids[:, :8], cache=other, compiled=False)
    for each in (model, twin):
        layer = each.blocks[1].mlp.layers[0]
        layer.weight.data = 2 * layer.weight.data
        each.blocks[0].norm1 = copy.deepcopy(each.blocks[0].norm2)
        each.blocks[0].mlp.layers[2] = copy.deepcopy(each.blocks[1].mlp.layers[2])
    with use_backend("numba"):
        found = model.forward_with_cache(ids[:, [8]], cache)[0].data
    wanted = decoded_once(twin, ids[:, [8]], other)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def decoded_once(model, ids, cache):
    with pytest.MonkeyPatch.context() as patch, use_backend("numba"):
        patch.setattr("tinytorch.core.language_model.decode_token", lambda *_: None)
        return model.forward_with_cache(ids, cache)[0].data


def test_a_hook_on_any_layer_is_called_also_one_that_comes_late():
    model = gpt()
    assert is_compiled(model)
    for name, _ in model.named_modules():
        if name.endswith("dropout") or not name.startswith("blocks.0"):
            continue
        twin, seen = gpt(), []
        assert is_compiled(twin)
        layer = dict(twin.named_modules())[name]
        handle = layer.register_forward_hook(lambda *_, log=seen: log.append(1))
        with use_backend("numba"):
            twin.forward_with_cache(np.array([[1]]), None)
        assert seen == [1], name
        handle.remove()


class Doubled(Linear):
    def forward(self, x):
        return super().forward(x) * 2.0


class Reversed(TransformerBlock):
    def forward_with_cache(self, x, cache, layer_idx):
        return -super().forward_with_cache(x, cache, layer_idx)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.blocks[1], "__class__", Reversed),
        lambda model: setattr(model, "norm", RMSNorm(32)),
        lambda model: setattr(model, "head", Doubled(32, VOCABULARY)),
        lambda model: model.blocks[1].mlp.layers.__setitem__(0, Doubled(32, 128)),
        lambda model: model.astype(np.float64),
    ],
    ids=["own block", "another norm", "own head", "own layer", "float64"],
)
def test_models_of_other_parts_are_left_to_their_layers(change):
    model = gpt()
    change(model)
    assert not is_compiled(model)


class Scaled(Module):
    """A norm that knows no width."""

    def __init__(self):
        self.weight = Parameter(np.ones(32, np.float32))

    def forward(self, x, added=None):
        return (x, x) if added is not None else x * 0.5


def test_a_norm_that_knows_no_width_is_left_to_itself():
    model = gpt()
    model.norm = Scaled()
    assert not is_compiled(model)


def test_a_layer_with_an_activation_of_its_own_keeps_it():
    model = quantized(gpt(), mode="weight_only")
    assert is_compiled(model)
    attention = model.blocks[0].attention
    attention.out_proj = attention.out_proj.with_activation("relu")
    assert not is_compiled(model)


@pytest.mark.parametrize(
    "change", [lambda model: None, lambda model: setattr(model, "norm", Scaled())]
)
def test_a_model_that_has_decoded_is_freed(change):
    model = gpt()
    change(model)
    is_compiled(model)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_a_model_is_looked_at_again_once_a_hook_is_gone():
    model = gpt()
    handle = model.blocks[0].register_forward_hook(lambda *_: None)
    assert not is_compiled(model)
    handle.remove()
    assert is_compiled(model)


class Counted(KVCache):
    def extend(self, *inputs, **settings):
        self.calls = getattr(self, "calls", 0) + 1
        return super().extend(*inputs, **settings)


def test_a_cache_of_another_kind_is_asked_by_the_layers():
    model = gpt()
    cache = model.make_cache()
    cache.__class__ = Counted
    with use_backend("numba"):
        model.forward_with_cache(np.array([[1]]), cache)
    assert cache.calls == len(model.blocks)


def test_windows_batches_and_recorders_are_left_to_the_layers():
    calls = []
    windowed = gpt(window=4)
    assert not is_compiled(windowed)
    with recording(calls.append), use_backend("numba"):
        gpt().forward_with_cache(np.array([[1]]), None)
    assert {"blocks.0.mlp.layers.0", "blocks.1.attention.q_proj"} <= {call.path for call in calls}


def test_a_full_cache_is_an_error_and_changes_nothing(ids):
    model = gpt()
    cache = model.make_cache(1, 6)
    decoded(model, ids[:, :6], cache=cache)
    before = [memory.copy() for memory in cache.memory()]
    with pytest.raises(Exception, match="full"):
        decoded_once(model, ids[:, [6]], cache)
    for now, then in zip(cache.memory(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_slow_step_makes_one_thread_be_tried_and_kept_while_it_is_faster():
    pace = Pace()
    for _ in range(10):
        assert pace.is_parallel()
        pace.note(1.0, is_parallel=True)
    pace.note(9.0, is_parallel=True)  # a neighbour came
    for _ in range(Pace.FOR_A_WHILE):
        assert not pace.is_parallel()
        pace.note(1.8, is_parallel=False)
    assert pace.is_parallel()
    pace.note(9.0, is_parallel=True)
    assert not pace.is_parallel()
    pace.note(20.0, is_parallel=False)  # one thread is no better
    assert pace.is_parallel()
    pace.note(9.0, is_parallel=True)  # so that is how long a step takes now
    assert pace.is_parallel()


class Raced(RotaryEmbedding):
    """Positions of which another thread keeps fewer, as soon as they are made."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "_waves":
            super().__setattr__(name, tuple(each[:2] for each in value))


def test_positions_hold_while_another_thread_keeps_fewer():
    x = np.zeros((1, 1, 20, 8), np.float32)
    expected, found = (kind(8, 4096).tables(x, 60, None) for kind in (RotaryEmbedding, Raced))
    np.testing.assert_array_equal(found, expected)
