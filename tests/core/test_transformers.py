"""Layer norm, the block and GPT: against PyTorch, under masks, and on bad input."""

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

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, LayerNorm, TinyGPT, Transformer, TransformerBlock
from tinytorch.errors import DTypeError, SettingError, ShapeError, TokenError

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


def test_the_width_of_a_block_has_two_names(rng):
    x = Tensor(rng.normal(size=(2, 5, 8)).astype(np.float32))
    expected = TransformerBlock(8, 2, hidden_dim=24, rng=0)(x).data
    for block in (TransformerBlock(8, 2, ff_dim=24, rng=0), TransformerBlock(8, 2, 24, rng=0)):
        assert block.mlp.layers[0].weight.shape == (8, 24)
        np.testing.assert_array_equal(block(x).data, expected)
    assert TransformerBlock(8, 2).mlp.layers[0].weight.shape == (8, 32)


def test_two_widths_of_a_block_are_refused():
    assert TransformerBlock(8, 2, 24, hidden_dim=24).mlp.layers[0].weight.shape == (8, 24)
    with pytest.raises(SettingError, match="ff_dim=24 and hidden_dim=16"):
        TransformerBlock(8, 2, ff_dim=24, hidden_dim=16)


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
    with pytest.raises(TokenError, match=r"integers, got 0\.5"):
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
    assert "head" in paths
    assert {"token_embedding", "blocks.0.attention", "blocks.0.attention.q_proj", "norm"} <= paths
    assert {call.path for call in calls if call.kind == "attention"} == {
        f"blocks.{index}.attention" for index in range(model.num_layers)
    }


def test_an_error_in_cached_generation_names_the_layer():
    model = small_gpt()
    model.blocks[0].attention.q_proj.in_features = 1
    with pytest.raises(ShapeError, match=r"^blocks\.0\.attention\.q_proj: Linear"):
        model.forward_with_cache([[1, 2]])


def test_a_window_is_a_setting_of_every_layer():
    model = small_gpt(window=3)
    assert [block.attention.window for block in model.blocks] == [3, 3]
    assert "window=3" in repr(model)
    assert model.make_cache().window == 3
    with pytest.raises(SettingError, match="a window must be at least 1 token, got 0"):
        small_gpt(window=0)


def test_a_window_that_holds_everything_changes_nothing(rng):
    ids = tokens(rng, 2, MAX_TIME)
    wide, plain = (small_gpt(window=window)(ids).data for window in (MAX_TIME, None))
    np.testing.assert_array_equal(wide, plain)


# ---------------------------------------------------------------- the sum before a layer norm


@pytest.mark.parametrize("backend", BACKENDS)
def test_adding_before_a_layer_norm_gives_the_sum_and_its_norm(backend, rng):
    norm = LayerNorm(6)
    x, added = (Tensor(rng.standard_normal((2, 3, 6)).astype(np.float32)) for _ in range(2))
    kinds = []
    with use_backend(backend):
        expected = (x + added).data, norm(x + added).data
        results = [norm(x, added)]
        with no_grad(), recording(lambda call: kinds.append(call.kind)):
            results.append(norm(x, added))
    assert kinds == ["add_layer_norm"]  # in one kernel
    for total, output in results:
        np.testing.assert_allclose(total.data, expected[0], rtol=1e-6)
        np.testing.assert_allclose(output.data, expected[1], rtol=1e-5, atol=1e-6)


def test_gradients_pass_through_the_sum_before_a_layer_norm(rng):
    norm = LayerNorm(4)
    pairs = []
    for fused in (True, False):
        x, added = (
            Tensor(np.random.default_rng(seed).standard_normal((3, 4)), requires_grad=True)
            for seed in (1, 2)
        )
        total, output = norm(x, added) if fused else (x + added, norm(x + added))
        (total * 2 + output**2).sum().backward()
        pairs.append((x.grad, added.grad))
    np.testing.assert_allclose(pairs[0], pairs[1], rtol=1e-12)


def test_what_is_added_may_broadcast(rng):
    norm = LayerNorm(4)
    x, row = Tensor(rng.standard_normal((3, 4))), Tensor(rng.standard_normal(4))
    with no_grad():
        total, output = norm(x, row)
        np.testing.assert_array_equal(output.data, norm(x + row).data)
    np.testing.assert_array_equal(total.data, x.data + row.data)
