"""The models of torch_transforms.py: shapes of transformers with random weights, as workloads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers

from tinytorch import Workload
from tinytorch.models.digits import draw_digits
from tinytorch.models.zoo import HELD_OUT_SEED, TRAINING_SEED, as_inputs
from tinytorch.transforms.static_generation import generation_call

SEED = 0
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SIDE = 224
STEPS, BATCH, RATE = 200, 64, 2e-3
HELD_OUT = 2048


@contextmanager
def empty_compiler_caches() -> Iterator[None]:
    """Let torch and Triton keep what they compile in a new folder: all of it is compiled here."""
    with tempfile.TemporaryDirectory(prefix="compiled-") as folder:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[name] = f"{folder}/{name}"
        yield


def made(name: str, make: Callable[[], torch.nn.Module], inputs: torch.Tensor, device: str) -> Any:
    """Give a workload of a model with seeded weights, in evaluation mode."""
    torch.manual_seed(SEED)
    return Workload(name, make().eval().to(device), (inputs.to(device),))


def bert(is_quick: bool, device: str = "cpu", attention: str = "sdpa") -> Workload:
    """Give BERT-base on 128 tokens."""
    sizes = SMALL | {"intermediate_size": 128, "vocab_size": 1000} if is_quick else {}
    config = transformers.BertConfig(**sizes, attn_implementation=attention)
    ids = torch.randint(5, 999, (1, 128), generator=torch.Generator().manual_seed(1))
    return made("BERT-base, 1 x 128", lambda: transformers.BertModel(config), ids, device)


def vit(is_quick: bool, device: str = "cpu", attention: str = "sdpa") -> Workload:
    """Give ViT-B/16 on one image."""
    sizes = SMALL | {"intermediate_size": 128} if is_quick else {}
    config = transformers.ViTConfig(**sizes, attn_implementation=attention)
    image = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return made("ViT-B/16, 1 image", lambda: transformers.ViTModel(config), image, device)


def gpt2(is_quick: bool, device: str = "cpu", attention: str = "sdpa") -> Workload:
    """Give GPT-2 small on 64 tokens, all logits."""
    small = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
    sizes: dict[str, Any] = small if is_quick else {}
    config = transformers.GPT2Config(
        **sizes, use_cache=False, attn_implementation=attention, bos_token_id=0, eos_token_id=0
    )
    ids = torch.randint(5, 999, (1, 64), generator=torch.Generator().manual_seed(1))
    return made("GPT-2 small, 1 x 64", lambda: transformers.GPT2LMHeadModel(config), ids, device)


def mobilenet(is_quick: bool, device: str = "cpu") -> Workload:
    """Give MobileNetV2 on one image."""
    config = transformers.MobileNetV2Config(num_labels=10, image_size=64 if is_quick else SIDE)
    side = 64 if is_quick else SIDE
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
    make = transformers.MobileNetV2ForImageClassification
    return made("MobileNetV2, 1 image", lambda: make(config), image, device)


def llama_text(is_quick: bool, device: str = "cpu") -> Workload:
    """Give a Llama of 1.1 billion parameters in bfloat16 that writes 200 tokens after 32."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    if is_quick:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=32, num_key_value_heads=8, vocab_size=32_000
    )
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(config).eval().to(device, torch.bfloat16)
    ids = torch.randint(5, 999, (1, 32), generator=torch.Generator().manual_seed(1)).to(device)
    text = generation_call(model, max_new_tokens=8 if is_quick else 200)
    return Workload("Llama 1.1B, 200 tokens", text, (ids,))


TEXT_AND_IMAGES: dict[str, Callable[..., Workload]] = {"bert": bert, "vit": vit, "gpt2": gpt2}


def resnet(is_quick: bool, device: str = "cpu", batch: int = 1) -> Workload:
    """Give ResNet-50 on some images of digits; its batch norms have seen others."""
    small: dict[str, Any] = {"depths": [1, 2, 1, 1], "hidden_sizes": [32, 64, 64, 64]}
    config = transformers.ResNetConfig(num_labels=10, **(small if is_quick else {}))
    side = 64 if is_quick else SIDE
    inputs = enlarged(digits(batch, HELD_OUT_SEED)[0], side)
    name = f"ResNet-50, {batch} {'image' if batch == 1 else 'images'}"
    case = made(name, lambda: transformers.ResNetForImageClassification(config), inputs, device)
    norms = [each for each in case.model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    seen = enlarged(digits(8, TRAINING_SEED)[0].to(device), side)
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        case.model.train()(seen)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    case.model.eval()
    return case


def trained_resnet(is_quick: bool, device: str, batch: int) -> Workload:
    """Give ResNet-50, trained for a short while to read digits: there is an accuracy to lose."""
    case = resnet(is_quick, device, batch)
    model, side = case.model, case.inputs[0].shape[-1]
    steps = 4 if is_quick else STEPS
    images, labels = (each.to(device) for each in digits(steps * BATCH, TRAINING_SEED))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    model.train()
    for part, answers in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        scores = model(enlarged(part, side)).logits
        torch.nn.functional.cross_entropy(scores, answers).backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
    model.eval().requires_grad_(False)
    held_images, held_labels = digits(64 if is_quick else HELD_OUT, HELD_OUT_SEED)

    def evaluate(candidate: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            parts = held_images.to(device).split(batch)
            scores = torch.cat([candidate(enlarged(part, side)).logits.cpu() for part in parts])
        return (scores.argmax(-1) == held_labels).numpy().astype(np.float64)

    return Workload(case.name, model, case.inputs, evaluate=evaluate, metric="right answers")


def digits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give images (count, 1, 28, 28) of digits, and what they show."""
    grey, labels = draw_digits(count, seed=seed)
    images = torch.from_numpy(as_inputs(grey, flat=False))
    return images, torch.from_numpy(np.asarray(labels)).long()


def enlarged(images: torch.Tensor, side: int) -> torch.Tensor:
    """Give grey images (batch, 1, ...) as coloured ones (batch, 3, side, side)."""
    large = torch.nn.functional.interpolate(images, size=(side, side), mode="bilinear")
    return large.repeat(1, 3, 1, 1)
