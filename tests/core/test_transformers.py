"""Layer norm, the block and GPT: against PyTorch, under masks, cached, and generating."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import (
    assert_same,
    check_gradients_of_parameters,
    check_twins,
    copy_weights,
    randomise,
)

from tinytorch.core.autograd import is_grad_enabled
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.sampling import Sampler
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, LayerNorm, TinyGPT, Transformer, TransformerBlock
from tinytorch.errors import CacheFullError, DTypeError, SettingError, ShapeError, TokenError

torch = require_part("torch")
functional = torch.nn.functional

DTYPES = [np.float32, np.float64]
BACKENDS = ["numpy", "reference"]
VOCABULARY, MAX_TIME = 17, 12


def small_gpt(seed=0, **settings):
    model = GPT(VOCABULARY, 16, 2, 4, MAX_TIME, rng=seed, **settings)
    randomise(model, np.random.default_rng(seed), scale=0.3)
    return model


def tokens(rng, *shape):
    return rng.integers(0, VOCABULARY, shape)


class TheirBlock(torch.nn.Module):
    """The block of GPT-2, written anew with PyTorch's functions on weights (in, out)."""

    def __init__(self, ours):
        super().__init__()
        self.heads = ours.attention.num_heads
        self.causal = ours.attention.causal
        self.names = [name for name, _ in ours.named_parameters()]
        for name, parameter in ours.named_parameters():
            tensor = torch.tensor(parameter.data.copy())
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor))

    def part(self, name):
        return getattr(self, name.replace(".", "_"))

    def linear(self, name, x):
        return x @ self.part(f"{name}.weight") + self.part(f"{name}.bias")

    def norm(self, name, x):
        weight, bias = self.part(f"{name}.weight"), self.part(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias)

    def forward(self, x, mask=None):
        batch, time, width = x.shape
        normed = self.norm("norm1", x)
        query, key, value = (
            self.linear(f"attention.{part}_proj", normed)
            .reshape(batch, time, self.heads, -1)
            .transpose(1, 2)
            for part in "qkv"
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal and mask is None
        )
        x = x + self.linear("attention.out_proj", mixed.transpose(1, 2).reshape(batch, time, width))
        hidden = functional.gelu(
            self.linear("mlp.layers.0", self.norm("norm2", x)), approximate="tanh"
        )
        return x + self.linear("mlp.layers.2", hidden)


def underscored(arrays):
    return {name.replace(".", "_"): array for name, array in arrays.items()}


# ---------------------------------------------------------------- layer norm


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6)])
def test_layer_norm_is_that_of_pytorch(shape, dtype, backend, rng):
    ours, theirs = LayerNorm(6, eps=1e-3), torch.nn.LayerNorm(6, eps=1e-3)
    randomise(ours, rng)
    x = (3 * rng.standard_normal(shape) + 2).astype(dtype)
    with use_backend(backend):
        check_twins(ours, theirs, x, rng)


@pytest.mark.parametrize("shape", [(5,), (2, 7), ()])
def test_layer_norm_names_itself_and_the_shape_that_does_not_fit(shape):
    with pytest.raises(ShapeError) as caught:
        LayerNorm(6)(Tensor(np.zeros(shape, np.float32)))
    assert str(caught.value) == f"LayerNorm(6, eps=1e-05) needs input (..., 6), got {shape}"


def test_layer_norm_needs_floating_point_numbers_and_a_width():
    with pytest.raises(DTypeError, match=r"LayerNorm.* needs floating-point input, got int64"):
        LayerNorm(6)(Tensor(np.zeros((2, 6), np.int64)))
    with pytest.raises(SettingError, match="LayerNorm needs a width of at least 1, got 0"):
        LayerNorm(0)


# ---------------------------------------------------------------- the block


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"hidden_dim": 5}])
def test_the_block_is_that_of_gpt2(settings, dtype, rng):
    ours = TransformerBlock(8, 2, **settings).astype(dtype)
    randomise(ours, rng)
    x = rng.standard_normal((3, 5, 8)).astype(dtype)
    # Six layers in a row, the last of which sum 32 products.
    check_twins(ours, TheirBlock(ours), x, rng, translate=underscored, factor=10)


def test_the_block_hands_its_mask_to_the_attention(rng):
    ours = TransformerBlock(8, 2)
    randomise(ours, rng)
    ours.astype(np.float64)
    mask = rng.random((5, 5)) < 0.5
    np.fill_diagonal(mask, True)
    theirs = TheirBlock(ours)
    check_twins(
        ours,
        theirs,
        rng.standard_normal((2, 5, 8)),
        rng,
        translate=underscored,
        our_call=lambda x: ours(x, mask),
        their_call=lambda x: theirs(x, torch.tensor(mask)),
        factor=10,
    )


# ---------------------------------------------------------------- GPT


def gpt2_names(arrays):
    """Give our arrays by the names of GPT2LMHeadModel, which joins query, key and value."""
    outer = {
        "transformer.wte.weight": arrays["token_embedding.weight"],
        "transformer.wpe.weight": arrays["position_embedding.weight"],
        "transformer.ln_f.weight": arrays["norm.weight"],
        "transformer.ln_f.bias": arrays["norm.bias"],
    }
    inner = {}
    for index in range(2):
        mine, other = f"blocks.{index}", f"transformer.h.{index}"
        for kind in ("weight", "bias"):
            joint = [arrays[f"{mine}.attention.{part}_proj.{kind}"] for part in "qkv"]
            inner |= {
                f"{other}.ln_1.{kind}": arrays[f"{mine}.norm1.{kind}"],
                f"{other}.attn.c_attn.{kind}": np.concatenate(joint, axis=-1),
                f"{other}.attn.c_proj.{kind}": arrays[f"{mine}.attention.out_proj.{kind}"],
                f"{other}.ln_2.{kind}": arrays[f"{mine}.norm2.{kind}"],
                f"{other}.mlp.c_fc.{kind}": arrays[f"{mine}.mlp.layers.0.{kind}"],
                f"{other}.mlp.c_proj.{kind}": arrays[f"{mine}.mlp.layers.2.{kind}"],
            }
    return outer | inner


@pytest.mark.parametrize("dtype", DTYPES)
def test_gpt_is_gpt2_forward_and_backward(dtype, rng):
    transformers = require_part("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=MAX_TIME,
        n_embd=16,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    theirs = transformers.GPT2LMHeadModel(config).to(torch.from_numpy(np.zeros(1, dtype)).dtype)
    ours = small_gpt().astype(dtype)
    ids, targets = tokens(rng, 2, 3, 9)
    copy_weights(ours, theirs, gpt2_names)
    our_logits = ours(Tensor(ids))
    CrossEntropyLoss()(our_logits, targets).backward()
    logits = theirs(torch.tensor(ids)).logits
    assert_same(our_logits, logits, factor=20)
    functional.cross_entropy(
        logits.reshape(-1, VOCABULARY), torch.tensor(targets.reshape(-1))
    ).backward()
    # Two blocks, the output layer and the loss in a row.
    check_gradients_of_parameters(ours, theirs, gpt2_names, factor=20)


def test_the_token_embedding_is_the_output_matrix(rng):
    model = small_gpt()
    assert sum("token_embedding" in name for name, _ in model.named_parameters()) == 1
    assert model.num_parameters() == sum(p.size for p in model.parameters())
    before = model(tokens(rng, 1, 4)).data
    model.token_embedding.weight.data = 2 * model.token_embedding.weight.data
    assert not np.allclose(before, model(tokens(rng, 1, 4)).data)


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_do_not_move_when_later_tokens_change(backend, rng):
    model = small_gpt()
    ids = tokens(rng, 2, MAX_TIME)
    with use_backend(backend):
        logits = model(ids).data
        for position in range(MAX_TIME):
            changed = ids.copy()
            changed[:, position + 1 :] = (ids[:, position + 1 :] + 1 + position) % VOCABULARY
            moved = model(changed).data
            np.testing.assert_array_equal(moved[:, : position + 1], logits[:, : position + 1])
            assert position == MAX_TIME - 1 or not np.array_equal(moved, logits)


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_logits_move_when_a_projection_changes(part, rng):
    model = small_gpt()
    ids = tokens(rng, 1, 6)
    before = model(ids).data
    projection = getattr(model.blocks[0].attention, part)
    projection.weight.data = 1.5 * projection.weight.data
    moved = np.abs(model(ids).data - before).max(axis=-1)[0]
    # The first token sees itself alone, whatever query and key are.
    assert (moved[1:] > 1e-3).all()
    assert (moved[0] > 1e-3) == (part in ("v_proj", "out_proj"))


def test_one_sequence_gives_the_row_of_a_batch(rng):
    model, ids = small_gpt(), tokens(rng, 5)
    assert model(ids).shape == (5, VOCABULARY)
    # BLAS may add up in another order.
    np.testing.assert_allclose(model(ids).data, model(ids[None]).data[0], rtol=0, atol=1e-5)


def test_whole_floats_are_tokens(rng):
    model, ids = small_gpt(), tokens(rng, 2, 5)
    np.testing.assert_array_equal(model(Tensor(ids.tolist())).data, model(ids).data)


def test_transformer_is_gpt_with_other_names():
    model = Transformer(VOCABULARY, 16, 4, 2, max_seq_len=9, rng=0)
    assert (model.embed_dim, model.num_heads, model.num_layers) == (16, 4, 2)
    assert model.max_seq_len == 9
    named = Transformer(VOCABULARY, d_model=16, n_heads=4, n_layers=2, rng=0)
    assert named.num_layers == 2
    assert TinyGPT is GPT


def test_weights_are_drawn_as_gpt2_draws_them():
    model = GPT(50, 64, 8, 4, rng=0)
    # Deviations of 4096 draws are good to 5% (they vary by about 1%).
    assert model.blocks[3].attention.q_proj.weight.data.std() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[3].attention.out_proj.weight.data.std() == pytest.approx(0.005, rel=0.05)
    assert model.blocks[3].mlp[2].weight.data.std() == pytest.approx(0.005, rel=0.05)
    assert not model.blocks[3].mlp[0].bias.data.any()


def test_dropout_is_active_in_training_alone(rng):
    model, ids = small_gpt(dropout=0.5), tokens(rng, 1, 6)
    assert not np.array_equal(model(ids).data, model(ids).data)
    model.eval()
    np.testing.assert_array_equal(model(ids).data, model(ids).data)


# ---------------------------------------------------------------- cached


@pytest.mark.parametrize("chunks", [[1] * MAX_TIME, [MAX_TIME], [5, 7], [1, 4, 2, 5], [11, 1]])
@pytest.mark.parametrize("shape", [(3, MAX_TIME), (MAX_TIME,)])
def test_cached_logits_are_plain_logits_at_every_position(shape, chunks, rng):
    model, ids = small_gpt().eval(), tokens(rng, *shape)
    wanted = model(ids).data
    cache, pieces, start = None, [], 0
    for length in chunks:
        logits, cache = model.forward_with_cache(ids[..., start : start + length], cache)
        assert logits.creator is None
        assert is_grad_enabled()
        pieces.append(logits.data)
        start += length
        assert cache.seq_pos == start
    found = np.concatenate(pieces, axis=-2)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_no_new_tokens_give_no_logits():
    model = small_gpt()
    logits, cache = model.forward_with_cache(np.zeros((2, 0), np.int64))
    assert logits.shape == (2, 0, VOCABULARY)
    assert cache.seq_pos == 0


def test_a_cache_follows_the_dtype_of_the_model(rng):
    model, ids = small_gpt().astype(np.float64), tokens(rng, 1, 6)
    logits, cache = model.forward_with_cache(ids)
    assert cache.get(0)[0].dtype == logits.dtype == np.float64
    np.testing.assert_allclose(logits.data, model(ids).data, atol=1e-12)


def test_a_short_cache_says_that_it_is_full(rng):
    model = small_gpt()
    cache = model.make_cache(1, max_seq_len=4)
    with pytest.raises(CacheFullError, match="the cache is full: at position 0 of 4"):
        model.forward_with_cache(tokens(rng, 1, 5), cache)
    model.forward_with_cache(tokens(rng, 1, 4), cache)
    assert cache.seq_pos == 4


def test_the_past_counts_towards_the_longest_sequence(rng):
    model = small_gpt()
    _, cache = model.forward_with_cache(tokens(rng, 1, 10))
    with pytest.raises(ShapeError, match=r"at most 12 tokens \(max_seq_len\), got 13"):
        model.forward_with_cache(tokens(rng, 1, 3), cache)


# ---------------------------------------------------------------- generating

WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "top k": {"temperature": 2.0, "top_k": 5, "seed": 4},
    "top p": {"temperature": 1.5, "top_p": 0.8, "seed": 5},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1), (2, MAX_TIME), (2, MAX_TIME + 3)])
def test_a_cache_changes_no_token(way, shape, rng):
    model, prompt = small_gpt(), tokens(rng, *shape)
    with_cache, without = (
        model.generate(prompt, 20, use_cache=use_cache, **WAYS[way]) for use_cache in (True, False)
    )  # 20 more tokens go past max_seq_len
    np.testing.assert_array_equal(with_cache.data, without.data)
    assert with_cache.shape == (*shape[:-1], shape[-1] + 20)
    assert with_cache.dtype.kind == "i"
    np.testing.assert_array_equal(with_cache.data[..., : shape[-1]], prompt)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [3, MAX_TIME + 2])
def test_tokens_are_chosen_from_the_logits_of_the_last_ones_that_fit(way, length, rng):
    model, ids = small_gpt().eval(), tokens(rng, 2, length)
    found = model.generate(ids, 20, **WAYS[way]).data
    settings = dict(WAYS[way])
    draws = np.random.default_rng(settings.pop("seed", None))
    for _ in range(20):
        logits = model(ids[:, -MAX_TIME:]).data[:, -1]
        ids = np.concatenate([ids, Sampler(**settings).choose(logits, draws)[:, None]], axis=1)
    np.testing.assert_array_equal(found, ids)


def test_the_first_of_one_is_greedy(rng):
    model, prompt = small_gpt(), tokens(rng, 2, 3)
    only = model.generate(prompt, 8, temperature=1.3, top_k=1, seed=0)
    np.testing.assert_array_equal(only.data, model.generate(prompt, 8).data)


def test_one_seed_gives_one_text_and_another_seed_another(rng):
    model, prompt = small_gpt(), tokens(rng, 3)
    first, again, other = (
        model.generate(prompt, 30, temperature=1.0, seed=seed).data for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_generation_ends_when_every_row_has_stopped(rng):
    model, prompt = small_gpt(), tokens(rng, 2, 3)
    free = model.generate(prompt, 60, temperature=3.0, seed=0).data[:, 3:]
    firsts = {
        token: [int(np.flatnonzero(row == token)[0]) for row in free]
        for token in set(free[0].tolist()) & set(free[1].tolist())
    }
    # The token at which one row stops long before the other does.
    stop = max(firsts, key=lambda token: abs(firsts[token][0] - firsts[token][1]))
    assert abs(firsts[stop][0] - firsts[stop][1]) > 2
    found = model.generate(prompt, 60, temperature=3.0, seed=0, stop_token=stop).data[:, 3:]
    assert found.shape[1] == max(firsts[stop]) + 1
    for row, unstopped, end in zip(found, free, firsts[stop], strict=True):
        # Rows draw their own numbers, so one that stopped does not change the other.
        np.testing.assert_array_equal(row[: end + 1], unstopped[: end + 1])
        assert (row[end:] == stop).all()


def test_a_stop_token_in_the_prompt_does_not_stop(rng):
    model = small_gpt()
    prompt = model.generate(tokens(rng, 3), 4).data
    stop = (int(prompt[-1]) + 1) % VOCABULARY
    found = model.generate(np.append(prompt[:2], stop), 5, stop_token=stop)
    assert found.shape[0] >= 4


def test_generating_builds_no_graph_and_leaves_every_mode_as_it_was(rng):
    model = small_gpt(dropout=0.5)
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    assert is_grad_enabled()
    for use_cache in (True, False):
        found = model.generate(tokens(rng, 3), 4, use_cache=use_cache)
        assert found.creator is None
        assert is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_is_off_while_generating(rng):
    model, prompt = small_gpt(dropout=0.5), tokens(rng, 3)
    calm = small_gpt(dropout=0.0)
    assert model.training
    for use_cache in (True, False):
        settings = {"temperature": 1.0, "seed": 1, "use_cache": use_cache}
        found, wanted = (each.generate(prompt, 20, **settings).data for each in (model, calm))
        np.testing.assert_array_equal(found, wanted)


def test_an_error_while_generating_leaves_the_mode_as_it_was(rng, monkeypatch):
    model = small_gpt()
    monkeypatch.setattr(model.blocks[0].mlp, "layers", [model.norm, model.token_embedding])
    with pytest.raises(TokenError):
        model.generate(tokens(rng, 3), 2)
    assert model.training


def test_no_new_tokens_give_the_prompt(rng):
    prompt = tokens(rng, 2, 3)
    np.testing.assert_array_equal(small_gpt().generate(prompt, 0).data, prompt)


# ---------------------------------------------------------------- bad input


def test_a_sequence_longer_than_the_model_is_an_error_that_counts(rng):
    with pytest.raises(ShapeError, match=r"at most 12 tokens \(max_seq_len\), got 13"):
        small_gpt()(tokens(rng, 1, 13))


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_a_token_outside_of_the_vocabulary_is_an_error(wrong):
    model = small_gpt()
    for call in (model, model.generate, model.forward_with_cache):
        with pytest.raises(TokenError, match=rf"{wrong} is outside of the vocabulary 0\.\.16"):
            call([[0, wrong]])


def test_a_token_that_is_not_whole_is_an_error():
    with pytest.raises(TokenError, match=r"whole numbers, got 0\.5"):
        small_gpt()(Tensor([[0.5]]))


@pytest.mark.parametrize("shape", [(), (1, 2, 3)])
def test_tokens_have_one_or_two_axes(shape):
    model = small_gpt()
    with pytest.raises(ShapeError, match=r"GPT needs token ids \(batch, time\), got \("):
        model(np.zeros(shape, np.int64))
    with pytest.raises(ShapeError, match=r"a prompt is \(time,\) or \(batch, time\)"):
        model.generate(np.zeros(shape, np.int64))


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ShapeError, match=r"with a token, got \(0,\)"):
        small_gpt().generate([])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 2.0}, "top_p must be in"),
    ],
)
def test_a_bad_setting_of_generate_is_an_error(settings, message):
    with pytest.raises(SettingError, match=message):
        small_gpt().generate([1], **settings)


@pytest.mark.parametrize("position", range(5))
def test_every_size_must_be_at_least_one(position):
    sizes = [4, 4, 1, 2, 8]
    sizes[position] = 0
    with pytest.raises(SettingError, match="every size of a GPT must be at least 1, got"):
        GPT(*sizes)


def test_an_error_in_a_block_names_the_layer():
    model = small_gpt()
    model.blocks[1].mlp.layers[0].in_features = 5
    with pytest.raises(ShapeError) as caught:
        model([[1, 2, 3]])
    assert str(caught.value).startswith("blocks.1.mlp.layers.0: Linear(5, 64, bias=True) needs")


def test_kernels_of_cached_generation_belong_to_the_layers_that_ran_them():
    model = small_gpt()
    calls = []
    with recording(calls.append):
        model.forward_with_cache([[1, 2, 3]])
    paths = {call.path for call in calls}
    assert "" in paths  # the output matrix belongs to the model itself
    assert {"token_embedding", "blocks.0.attention", "blocks.0.attention.q_proj", "norm"} <= paths
    assert {call.path for call in calls if call.kind == "attention"} == {
        f"blocks.{index}.attention" for index in range(model.num_layers)
    }


def test_an_error_in_cached_generation_names_the_layer():
    model = small_gpt()
    model.blocks[0].attention.q_proj.in_features = 1
    with pytest.raises(ShapeError, match=r"^blocks\.0\.attention\.q_proj: Linear"):
        model.forward_with_cache([[1, 2]])
