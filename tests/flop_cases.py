"""Small models with random weights, and what a call costs in FLOPs by their configuration.

All sizes of a model differ, so that no mix-up gives the right number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flop_formulas import attention, attention_layer, contraction, convolution, feed_forward
from parts import require_part


@dataclass(frozen=True)
class Case:
    """A model with inputs, and what one call costs.

    `input_layers` is the cost of those products whose input has no gradient, so that they lack one
    of the two products that every other product has in its backward pass.
    """

    model: Any
    inputs: tuple[Any, ...]
    flops: int
    input_layers: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training_flops(self) -> int:
        """Forward, then the gradients of both factors of each product."""
        return 3 * self.flops - self.input_layers


def tokens(vocabulary: int, *shape: int) -> Any:
    torch = require_part("torch")
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))


def normal(*shape: int) -> Any:
    torch = require_part("torch")
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def as_model(function: Callable[..., Any]) -> Any:
    """Give a PyTorch module that calls a function."""
    torch = require_part("torch")

    class Calling(torch.nn.Module):
        def forward(self, *inputs: Any, **options: Any) -> Any:
            return function(*inputs, **options)

    return Calling()


def gpt2_model(attn: str, *, width: int, heads: int, hidden: int, layers: int) -> Any:
    transformers = require_part("transformers")
    config = transformers.GPT2Config(
        n_embd=width,
        n_head=heads,
        n_inner=hidden,
        n_layer=layers,
        n_positions=19,
        vocab_size=71,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attn,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def gpt2(attn: str) -> Case:
    """GPT-2 with its output layer, which is tied to the embedding and costs all the same."""
    batch, time, width, heads, hidden, layers = 2, 11, 24, 3, 88, 2
    block = attention_layer(batch, time, time, width, heads=heads)
    block += feed_forward(batch * time, width, hidden)
    return Case(
        gpt2_model(attn, width=width, heads=heads, hidden=hidden, layers=layers),
        (tokens(71, batch, time),),
        layers * block + contraction(batch, time, width, 71),
    )


def gpt2_with_cache(attn: str) -> Case:
    """Two more tokens after nine: queries are new, keys are old and new."""
    torch = require_part("torch")
    batch, past, time, width, heads, hidden, layers = 3, 9, 2, 20, 5, 36, 2
    model = gpt2_model(attn, width=width, heads=heads, hidden=hidden, layers=layers)
    with torch.no_grad():
        cache = model(tokens(71, batch, past), use_cache=True).past_key_values
    block = 4 * contraction(batch, time, width, width)
    block += attention(batch, heads, time, past + time, width=width // heads)
    block += feed_forward(batch * time, width, hidden)
    return Case(
        model,
        (tokens(71, batch, time),),
        layers * block + contraction(batch, time, width, 71),
        options={"past_key_values": cache},
    )


def bert(attn: str) -> Case:
    """BERT with its pooler, which reads the first token only."""
    transformers = require_part("transformers")
    batch, time, width, heads, hidden, layers, vocabulary = 3, 10, 24, 4, 56, 2, 61
    config = transformers.BertConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        max_position_embeddings=16,
        attn_implementation=attn,
    )
    block = attention_layer(batch, time, time, width, heads=heads)
    block += feed_forward(batch * time, width, hidden)
    return Case(
        transformers.BertModel(config).eval(),
        (tokens(vocabulary, batch, time),),
        layers * block + contraction(batch, width, width),
    )


def vit(attn: str) -> Case:
    """ViT; a patch is a convolution without overlap, and one class token joins the patches."""
    transformers = require_part("transformers")
    batch, side, patch, width, heads, hidden, layers, labels = 2, 24, 8, 20, 4, 52, 3, 7
    config = transformers.ViTConfig(
        image_size=side,
        patch_size=patch,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_labels=labels,
        attn_implementation=attn,
    )
    flops, patches = vit_flops(batch, side, patch, width, heads, hidden, layers, labels)
    images = normal(batch, 3, side, side)
    model = transformers.ViTForImageClassification(config).eval()
    return Case(model, (images,), flops, input_layers=patches)


def vit_flops(
    batch: int, side: int, patch: int, width: int, heads: int, hidden: int, layers: int, labels: int
) -> tuple[int, int]:
    """Give the cost of all, and of the patches."""
    time = (side // patch) ** 2 + 1
    patches = contraction(batch, time - 1, 3 * patch * patch, width)
    block = attention_layer(batch, time, time, width, heads=heads)
    block += feed_forward(batch * time, width, hidden)
    return patches + layers * block + contraction(batch, width, labels), patches


def whisper(attn: str) -> Case:
    """Whisper: two convolutions, the second of which halves the time; then T5's arrangement."""
    transformers = require_part("transformers")
    batch, mels, frames, time, width, vocabulary = 2, 9, 26, 7, 24, 53
    config = transformers.WhisperConfig(
        d_model=width,
        num_mel_bins=mels,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=44,
        decoder_layers=3,
        decoder_attention_heads=3,
        decoder_ffn_dim=52,
        vocab_size=vocabulary,
        max_source_positions=frames // 2,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation=attn,
    )
    sounds = frames // 2
    first = convolution(batch, (width, mels), (3,), (frames,))
    stem = first + convolution(batch, (width, width), (3,), (sounds,))
    encoder = attention_layer(batch, sounds, sounds, width, heads=4)
    encoder += feed_forward(batch * sounds, width, 44)
    decoder = attention_layer(batch, time, time, width, heads=3)
    decoder += attention_layer(batch, time, sounds, width, heads=3)
    decoder += feed_forward(batch * time, width, 52)
    return Case(
        transformers.WhisperForConditionalGeneration(config).eval(),
        (normal(batch, mels, frames),),
        stem + 2 * encoder + 3 * decoder + contraction(batch, time, width, vocabulary),
        input_layers=first,
        options={"decoder_input_ids": tokens(vocabulary, batch, time)},
    )


def t5(attn: str) -> Case:
    """T5 with gated networks; heads times their width is not the width of the model."""
    transformers = require_part("transformers")
    batch, source, target, width, heads, head, hidden, vocabulary = 2, 9, 7, 20, 3, 8, 44, 59
    config = transformers.T5Config(
        d_model=width,
        num_heads=heads,
        d_kv=head,
        d_ff=hidden,
        num_layers=2,
        num_decoder_layers=3,
        vocab_size=vocabulary,
        feed_forward_proj="gated-gelu",
        attn_implementation=attn,
    )
    sizes = {"heads": heads, "head_width": head}
    encoder = attention_layer(batch, source, source, width, **sizes)
    encoder += feed_forward(batch * source, width, hidden, matrices=3)
    decoder = attention_layer(batch, target, target, width, **sizes)
    decoder += attention_layer(batch, target, source, width, **sizes)
    decoder += feed_forward(batch * target, width, hidden, matrices=3)
    return Case(
        transformers.T5ForConditionalGeneration(config).eval(),
        (),
        2 * encoder + 3 * decoder + contraction(batch, target, width, vocabulary),
        options={
            "input_ids": tokens(vocabulary, batch, source),
            "decoder_input_ids": tokens(vocabulary, batch, target),
        },
    )


def llama(attn: str) -> Case:
    """Llama with grouped queries: keys of few heads are projected, but all heads attend."""
    transformers = require_part("transformers")
    batch, time, width, heads, key_heads, head, hidden, vocabulary = 2, 9, 30, 6, 2, 8, 44, 67
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head,
        intermediate_size=hidden,
        num_hidden_layers=3,
        vocab_size=vocabulary,
        max_position_embeddings=32,
        attn_implementation=attn,
    )
    block = attention_layer(
        batch, time, time, width, heads=heads, head_width=head, key_heads=key_heads
    )
    block += feed_forward(batch * time, width, hidden, matrices=3)
    return Case(
        transformers.LlamaForCausalLM(config).eval(),
        (tokens(vocabulary, batch, time),),
        3 * block + contraction(batch, time, width, vocabulary),
    )


def mixtral(attn: str, experts: str | None = None) -> Case:
    """Mixtral: a gate looks at every token, and only the chosen experts multiply it."""
    transformers = require_part("transformers")
    batch, time, width, heads, key_heads, hidden, vocabulary = 2, 9, 24, 6, 2, 40, 67
    count, chosen = 5, 3
    config = transformers.MixtralConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=hidden,
        num_local_experts=count,
        num_experts_per_tok=chosen,
        num_hidden_layers=2,
        vocab_size=vocabulary,
        max_position_embeddings=32,
        attn_implementation=attn,
    )
    block = attention_layer(batch, time, time, width, heads=heads, key_heads=key_heads)
    block += contraction(batch, time, width, count)
    block += feed_forward(batch * time * chosen, width, hidden, matrices=3)
    model = transformers.MixtralForCausalLM(config).eval()
    if experts is not None:
        model.set_experts_implementation(experts)
    return Case(
        model,
        (tokens(vocabulary, batch, time),),
        2 * block + contraction(batch, time, width, vocabulary),
    )


def mamba() -> Case:
    """Mamba as it runs without kernels of its own.

    The state is updated by elementwise products, which are no contractions; reading it is one. The
    convolution pads both ends and drops the surplus afterwards, so that it is computed too.
    """
    transformers = require_part("transformers")
    batch, time, width, inner, state, rank, kernel, vocabulary = 2, 9, 20, 40, 6, 3, 4, 67
    config = transformers.MambaConfig(
        hidden_size=width,
        intermediate_size=inner,
        expand=2,
        state_size=state,
        time_step_rank=rank,
        conv_kernel=kernel,
        num_hidden_layers=3,
        vocab_size=vocabulary,
        use_cache=False,
    )
    block = contraction(batch, time, width, 2 * inner)
    block += convolution(batch, (inner, 1), (kernel,), (time + kernel - 1,))
    block += contraction(batch, time, inner, rank + 2 * state)
    block += contraction(batch, time, rank, inner)
    block += contraction(batch, time, inner, state)
    block += contraction(batch, time, inner, width)
    return Case(
        transformers.MambaForCausalLM(config).eval(),
        (tokens(vocabulary, batch, time),),
        3 * block + contraction(batch, time, width, vocabulary),
    )


def resnet50(batch: int, side: int) -> Case:
    transformers = require_part("transformers")
    config = transformers.ResNetConfig(num_labels=1000)
    flops, stem = resnet50_flops(batch, side)
    model = transformers.ResNetForImageClassification(config).eval()
    return Case(model, (normal(batch, 3, side, side),), flops, input_layers=stem)


def resnet50_flops(batch: int, side: int) -> tuple[int, int]:
    """Give the cost of all, and of the first convolution; strides sit on the 3x3 ones."""
    side = math.ceil(side / 2)
    flops = stem = convolution(batch, (64, 3), (7, 7), (side, side))
    side, channels = math.ceil(side / 2), 64  # the maximum pool
    for stage, (depth, out) in enumerate([(3, 256), (4, 512), (6, 1024), (3, 2048)]):
        for block in range(depth):
            narrow = out // 4
            flops += convolution(batch, (narrow, channels), (1, 1), (side, side))
            side = math.ceil(side / 2) if stage and not block else side
            flops += convolution(batch, (narrow, narrow), (3, 3), (side, side))
            flops += convolution(batch, (out, narrow), (1, 1), (side, side))
            if not block:  # the shortcut
                flops += convolution(batch, (out, channels), (1, 1), (side, side))
            channels = out
    return flops + contraction(batch, channels, 1000), stem


def mobilenet_v2(batch: int, side: int, multiplier: float) -> Case:
    transformers = require_part("transformers")
    config = transformers.MobileNetV2Config(depth_multiplier=multiplier, num_labels=1000)
    flops, stem = mobilenet_v2_flops(batch, side, multiplier)
    model = transformers.MobileNetV2ForImageClassification(config).eval()
    return Case(model, (normal(batch, 3, side, side),), flops, input_layers=stem)


def mobilenet_v2_flops(batch: int, side: int, multiplier: float) -> tuple[int, int]:
    """Give the cost of all, and of the first convolution, by the table of the paper.

    Each block widens, convolves every channel on its own, and narrows.
    """
    side, channels = math.ceil(side / 2), _eighths(32 * multiplier)
    flops = stem = convolution(batch, (channels, 3), (3, 3), (side, side))
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    rows += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, base, repeats, stride in rows:
        for repeat in range(repeats):
            wide, out = channels * expansion, _eighths(base * multiplier)
            if expansion > 1:
                flops += convolution(batch, (wide, channels), (1, 1), (side, side))
            side = side if repeat else math.ceil(side / stride)
            flops += convolution(batch, (wide, 1), (3, 3), (side, side))
            flops += convolution(batch, (out, wide), (1, 1), (side, side))
            channels = out
    flops += convolution(batch, (1280, channels), (1, 1), (side, side))
    return flops + contraction(batch, 1280, 1000), stem


def _eighths(channels: float) -> int:
    """Round to a multiple of 8, but never down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


ATTENTIVE: dict[str, Callable[[str], Case]] = {
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "whisper": whisper,
    "t5": t5,
    "llama": llama,
    "mixtral": mixtral,
}
OTHERS: dict[str, Callable[[], Case]] = {
    "mamba": mamba,
    "resnet50": lambda: resnet50(2, 47),
    "mobilenet_v2": lambda: mobilenet_v2(2, 46, 0.35),
}
ARCHITECTURES: dict[str, Callable[[], Case]] = {
    **{
        f"{name}-{attn}": (lambda build=build, attn=attn: build(attn))
        for name, build in ATTENTIVE.items()
        for attn in ("eager", "sdpa")
    },
    **OTHERS,
}
