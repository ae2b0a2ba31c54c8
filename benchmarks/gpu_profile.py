"""Profile GPT-2 and ResNet-50 on a CUDA device and check what must hold there.

    python benchmarks/gpu_profile.py [FOLDER]

Checked: FLOP counts equal those of the same model on the CPU, for every attention kernel, fused
layer and recurrent network; the own times of layers add up to the model's; the peak of live buffers
agrees with the allocator's. Printed: the ceilings of the device and both profiles. With a folder,
profiles are written there as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tinytorch.measure.ceilings import machine_ceilings
from tinytorch.profiling.flops import count_flops
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.model_profile import profile_model
from tinytorch.profiling.profile import Profile

console = Console(width=150)
failures: list[str] = []


def check(name: str, holds: bool, seen: str) -> None:
    console.print(f"{'ok  ' if holds else 'FAIL'} {name}: {seen}")
    if not holds:
        failures.append(name)


class Attend(nn.Module):
    """Attention with a kernel of choice."""

    def __init__(self, kernel: SDPBackend, **settings: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.settings = settings

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(self.kernel):
            return scaled_dot_product_attention(query, key, value, **self.settings)


def check_attention() -> None:
    batch, heads, queries, keys, width = 2, 8, 96, 160, 64
    truth = 2 * batch * heads * queries * keys * 2 * width
    names = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
    for name in names:
        for groups in (1, 4):
            kernel = getattr(SDPBackend, name)
            shapes = [(batch, heads, queries, width)] + 2 * [(batch, heads // groups, keys, width)]
            tensors = [
                torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for shape in shapes
            ]
            model = Attend(kernel, enable_gqa=groups > 1)
            title = f"attention {name.lower()} {'grouped' if groups > 1 else ''}"
            try:
                forward = count_flops(model, *tensors)
                both = count_flops(model, *tensors, backward=True)
            except Exception as error:
                message = str(error.__cause__ or error).splitlines()[0]
                console.print(f"--   {title}: not available: {message[:100]}")
                continue
            check(title, forward == truth, f"{forward:,} FLOPs, {truth:,} by hand")
            check(f"{title} training", both == 3 * truth, f"{both:,}, {3 * truth:,} by hand")


def small_models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    tokens = torch.randint(0, 90, (2, 24))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 99}
    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2}
    x = torch.randn(3, 7, 32)
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return {
        "LSTM": (nn.LSTM(32, 40, 2, bidirectional=True, batch_first=True), (x,)),
        "LSTM with projection": (nn.LSTM(32, 40, proj_size=16, batch_first=True), (x,)),
        "GRU": (nn.GRU(32, 40, 2, batch_first=True), (x,)),
        "encoder layer": (layer.eval(), (x,)),
        "multi-head attention": (nn.MultiheadAttention(32, 4, batch_first=True).eval(), (x, x, x)),
        "transposed convolution": (
            nn.ConvTranspose2d(6, 9, 3, stride=2, groups=3),
            (torch.randn(2, 6, 11, 13),),
        ),
        "GPT-2": (
            transformers.GPT2LMHeadModel(
                transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=99)
            ).eval(),
            (tokens,),
        ),
        "Llama": (
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **grouped)).eval(),
            (tokens,),
        ),
        "Mixtral": (
            transformers.MixtralForCausalLM(
                transformers.MixtralConfig(**sizes, **grouped, num_local_experts=4)
            ).eval(),
            (tokens,),
        ),
    }


def check_counts() -> None:
    for name, (model, inputs) in small_models().items():
        for backward in (False, True):
            title = f"{name}{' training' if backward else ''}"
            model.float().cpu()
            expected = count_flops(model, *inputs, backward=backward)
            if backward and isinstance(model, nn.RNNBase):
                # cuDNN computes the gradient of the input whether anybody wants it or not
                expected = 3 * count_flops(model, *inputs)
            model.cuda()
            half = torch.bfloat16 if name == "Mixtral" else torch.float32
            on_gpu = tuple(t.cuda().to(half) if t.is_floating_point() else t.cuda() for t in inputs)
            try:
                seen = count_flops(model.to(half), *on_gpu, backward=backward)
            except Exception as error:
                check(title, False, repr(error)[:300])
                continue
            check(title, seen == expected, f"{seen:,} on CUDA, {expected:,} on the CPU")


def check_profile(profile: Profile, model: nn.Module, *inputs: torch.Tensor) -> None:
    own = sum(layer.self_s for layer in profile.layers)
    outermost = ("", BACKWARD, UPDATE)
    whole = sum(layer.time_s for layer in profile.layers if layer.path in outermost)
    off = abs(own / whole - 1)
    check(f"{profile.name}: own times add up to the model's", off < 0.01, f"off by {off:.2%}")
    check(
        f"{profile.name}: unattributed is small",
        profile.unattributed_s / profile.total_s < 0.05,
        f"{profile.unattributed_s / profile.total_s:.2%}",
    )
    live = profile.memory.peak_activation_bytes
    allocator = profile.recording.device_peak_bytes or 0
    check(
        f"{profile.name}: allocator saw at least the live bytes",
        allocator >= 0.98 * live,
        f"{live / 2**20:.1f} MiB live, {allocator / 2**20:.1f} MiB by the allocator",
    )
    device_s = profile.device_time.median if profile.device_time else float("nan")
    busy = profile.busy.median if profile.busy else float("nan")
    watching = "not known" if profile.overhead is None else f"{profile.overhead:.1%}"
    console.print(
        f"     latency {profile.latency.median * 1e3:.3f} ms, device time {device_s * 1e3:.3f} ms, "
        f"busy {busy * 1e3:.3f} ms, device idle {profile.idle_share:.0%}, "
        f"watching cost {watching}, n={profile.latency.count}"
    )
    console.print(f"     {profile.flops / 1e9:.2f} GFLOP, {profile.dtype}, {profile.model_bound}")
    console.print(f"     not counted: {profile.not_counted}")
    for spot in profile.hotspots[:6]:
        console.print(f"     {spot.share:6.1%} {spot.name} ({spot.kind}) {spot.bound}")
    for group in profile.top_operations[:6]:
        console.print(f"     {group.share:6.1%} {group.kind} {group.phase} x{group.calls}")
    model.zero_grad()


def compare_vocabularies() -> None:
    """Time the head of GPT-2 in bfloat16 with its own vocabulary and with one that is padded."""
    x = torch.randn(4096, 768, device="cuda", dtype=torch.bfloat16)
    for columns in (50257, 50264, 50304):
        head = nn.Linear(768, columns, bias=False, device="cuda", dtype=torch.bfloat16)
        profile = profile_model(head, x, name=f"{columns} columns", runs=40)
        console.print(
            f"     {profile.name}: {profile.latency.median * 1e3:.3f} ms, {profile.model_bound}"
        )


def main() -> int:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    torch.manual_seed(0)
    console.print(torch.__version__, transformers.__version__, torch.cuda.get_device_name())
    ceilings = machine_ceilings("cuda", refresh=True)
    for rate in ceilings.rates:
        console.print(f"{rate.dtype:9} {rate.median / 1e12:8.1f} TFLOP/s, spread {rate.spread:.1%}")
    for level in ceilings.bandwidths:
        rate = ceilings.bandwidth(level.capacity_bytes)
        console.print(f"{level.level:9} {rate / 1e12:8.2f} TB/s at {level.working_set_bytes:,} B")
    console.print(f"not measured: {dict(ceilings.not_measured)}")
    check_attention()
    check_counts()
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().cuda()
    resnet = transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval().cuda()
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")
    images = torch.randn(32, 3, 224, 224, device="cuda")
    cases: dict[str, tuple[nn.Module, torch.Tensor, bool]] = {
        "gpt2-fp32": (gpt2, tokens, False),
        "gpt2-fp32-1x128": (gpt2, tokens[:1, :128], False),
        "resnet50-fp32": (resnet, images, False),
        "resnet50-fp32-training": (resnet, images, True),
        "gpt2-bf16": (gpt2, tokens, False),
    }
    for name, (model, inputs, training) in cases.items():
        if name.endswith("bf16"):
            model.bfloat16()
        profile = profile_model(model, inputs, name=name, training=training)
        check_profile(profile, model, inputs)
        if folder is not None:
            try:
                (folder / f"{name}.json").write_text(json.dumps(profile.to_dict()))
            except ImportError as error:
                console.print(f"     not written: {error}")
    compare_vocabularies()
    console.print(f"{len(failures)} failures: {failures}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
