"""What quantization.py measures: models, and ways to quantize them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from generation_sides import Shape, random_gpt

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.core.autograd import no_grad
from tinytorch.core.dataloader import TensorDataset
from tinytorch.core.tensor import Tensor
from tinytorch.models.digits import draw_digits
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import as_inputs, load_zoo
from tinytorch.transforms.quantize import Quantize

MODES = {
    "weight-only 8": Quantize("weight_only"),
    "weight-only 4": Quantize("weight_only", bits=4),
    "dynamic 8": Quantize("dynamic"),
    "static 8": Quantize("static"),
}

GPT2_SMALL: Shape = (50257, 768, 12, 12, 1024)
PROMPT = 64
MANY_IMAGES = 20_000
MANY_IMAGES_SEED = 3  # 0 was trained on, 1 was looked at, 2 is held out


def models(gpt2: Shape) -> dict[str, Callable[[], Workload]]:
    """Give the zoo, and a language model with random weights and the shape of a larger one."""
    name = "GPT-2 small" if gpt2 == GPT2_SMALL else "a small stand-in for GPT-2"
    zoo = {each: lambda each=each: load_zoo(each) for each in ("mlp", "cnn", "gpt")}
    return {**zoo, name: lambda: _language_model(name, gpt2)}


def _language_model(name: str, shape: Shape) -> Workload:
    rng = np.random.default_rng(2)
    batches = [(Tensor(rng.integers(0, shape[0], (1, PROMPT))),) for _ in range(4)]
    return Workload(name, random_gpt(shape), batches[0], calibration=tuple(batches))


@lru_cache(maxsize=2)
def many_digits(*, flat: bool) -> TensorDataset:
    """Give images that no model was trained or chosen by."""
    images, labels = draw_digits(MANY_IMAGES, seed=MANY_IMAGES_SEED)
    return TensorDataset(as_inputs(images, flat=flat), labels)


def quantized(workload: Workload, transform: Quantize) -> Any:
    return transform.apply(workload, transform.plan(workload))


def signal_to_noise(workload: Workload, model: Any) -> float:
    """Give how far the outputs of a copy are from those of the model, in decibels, or end it."""
    with no_grad():
        exact, found = (each(*workload.inputs).data for each in (workload.model, model))
    difference = compare_outputs((exact,), (found,))
    if difference.broken or difference.sqnr_db is None or difference.sqnr_db < 10:
        reason = difference.broken or f"{difference.sqnr_db} dB"
        raise SystemExit(f"{workload.name}: the quantized model is broken ({reason})")
    return difference.sqnr_db
