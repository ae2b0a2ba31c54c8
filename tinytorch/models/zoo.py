"""The zoo: three small real models, trained, with their data.

`mlp` and `cnn` read digits, `gpt` writes English. Their weights ship with the package and come
from ``python -m tinytorch.models.train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import load_checkpoint
from tinytorch.core.dataloader import TensorDataset
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear, ReLU, Seed, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module, keeping_modes
from tinytorch.core.spatial import Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.tokenization import CharTokenizer
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError, TargetError
from tinytorch.models.digits import CLASSES, SIDE, draw_digits
from tinytorch.models.workload import Scores, Workload, call_model

__all__ = ["ZOO", "build_cnn", "build_gpt", "build_mlp", "digit_data", "load_zoo", "text_data"]


# ---------------------------------------------------------------- the text that the language model
# learns: Jane Austen, "Pride and Prejudice" (1813)
#
# The novel is in the public domain. ``corpus.txt`` holds the whole text as in the public-domain
# edition, in plain ASCII: one line per paragraph, one blank line between paragraphs, chapter
# headings as paragraphs of their own, no marks for italics.

CORPUS_FILE = "corpus.txt"
PARAGRAPH_BREAK = "\n\n"


def load_corpus() -> str:
    """Read the whole novel, about 680,000 characters."""
    return resources.files(__package__).joinpath(CORPUS_FILE).read_text(encoding="ascii")


def split_corpus(text: str, held_out: float = 0.1) -> tuple[str, str]:
    """Cut the text into a part to train on and the last part, which is held out.

    The two parts joined are the text again. The cut is the paragraph boundary nearest to the
    fraction asked for, so the held-out part starts with the first letter of a paragraph.
    """
    if not 0.0 < held_out < 1.0:
        raise SettingError(
            f"held_out is {held_out!r}: pass the fraction of the text to hold out, "
            "between 0 and 1 without the ends (0.1 holds out the last tenth)"
        )
    wanted = round(len(text) * (1.0 - held_out))
    before = text.rfind(PARAGRAPH_BREAK, 0, wanted)
    after = text.find(PARAGRAPH_BREAK, before + 1)
    cuts = [found + len(PARAGRAPH_BREAK) for found in (before, after) if found >= 0]
    if not cuts:
        raise SettingError(
            f"the text has {len(text)} characters and no blank line to cut at: "
            "separate its paragraphs by blank lines"
        )
    cut = min(cuts, key=lambda position: abs(position - wanted))
    return text[:cut], text[cut:]


# ---------------------------------------------------------------- the zoo: three small real
# models, trained, with their data

WEIGHTS = Path(__file__).parent / "weights"
TRAINING_IMAGES = 20_000
HELD_OUT_IMAGES = 5_000
TRAINING_SEED = 0
HELD_OUT_SEED = 2  # seed 1 was looked at while the digits were designed
CONTEXT = 64
CALIBRATION_BATCHES = 8
CALIBRATION_BATCH = 32
EVALUATION_BATCH = 250


def build_mlp(rng: Seed = None, *, side: int = SIDE) -> Sequential:
    """Return an untrained 784-128-64-10 perceptron for flat images."""
    rng = np.random.default_rng(rng)
    return Sequential(
        Linear(side * side, 128, rng=rng),
        ReLU(),
        Linear(128, 64, rng=rng),
        ReLU(),
        Linear(64, CLASSES, rng=rng),
    )


def build_cnn(rng: Seed = None, *, side: int = SIDE) -> Sequential:
    """Return an untrained network of two 3x3 convolutions for images (batch, 1, side, side)."""
    rng = np.random.default_rng(rng)
    return Sequential(
        Conv2d(1, 16, 3, padding=1, rng=rng),
        ReLU(),
        MaxPool2d(2),
        Conv2d(16, 32, 3, padding=1, rng=rng),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(32 * (side // 4) ** 2, CLASSES, rng=rng),
    )


def build_gpt(rng: Seed = None) -> GPT:
    """Return an untrained character-level GPT of 4 layers, 4 heads, width 128, context 64."""
    return GPT(tokenizer().vocab_size, 128, 4, 4, max_seq_len=CONTEXT, rng=rng)


@lru_cache(maxsize=1)
def tokenizer() -> CharTokenizer:
    """Return the tokenizer of the corpus, one token per character that occurs in it."""
    return CharTokenizer.train(load_corpus())


@lru_cache(maxsize=4)
def digit_data(*, held_out: bool, flat: bool) -> TensorDataset:
    """Return images (scaled to mean 0 and deviation 1, roughly) and labels, drawn on first use."""
    count, seed = (HELD_OUT_IMAGES, HELD_OUT_SEED) if held_out else (TRAINING_IMAGES, TRAINING_SEED)
    images, labels = draw_digits(count, seed=seed)
    return TensorDataset(as_inputs(images, flat=flat), labels)


def as_inputs(images: Array, *, flat: bool) -> Array:
    """Turn grey values (batch, side, side) in 0..1 into what the digit models take."""
    centred = ((images - 0.15) / 0.3).astype(np.float32)
    return centred.reshape(len(images), -1) if flat else centred[:, None]


@lru_cache(maxsize=2)
def text_data(*, held_out: bool) -> TensorDataset:
    """Return windows of 64 characters and what follows each; training windows overlap by half."""
    training, rest = split_corpus(load_corpus())
    ids = np.array(tokenizer().encode(rest if held_out else training))
    starts = np.arange(0, len(ids) - CONTEXT, CONTEXT if held_out else CONTEXT // 2)
    windows = starts[:, None] + np.arange(CONTEXT)
    return TensorDataset(ids[windows], ids[windows + 1])


def is_correct(model: Any, data: TensorDataset) -> Scores:
    """Score each image: 1 where the largest output is the label, else 0."""
    with _evaluating(model):
        hits = [_logits(model, x).argmax(axis=-1) == y for x, y in _batches(data)]
    return np.concatenate(hits).astype(np.float64)


def log_likelihood(model: Any, data: TensorDataset) -> Scores:
    """Score each window: the mean log-likelihood of its next characters, in nats."""
    loss = CrossEntropyLoss(reduction="none")
    with _evaluating(model):
        losses = [loss(Tensor(_logits(model, x)), y).data.mean(axis=-1) for x, y in _batches(data)]
    return -np.concatenate(losses).astype(np.float64)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Score a model of ours in evaluation mode, and leave it in the mode that it was in."""
    with no_grad():
        if isinstance(model, Module):
            with keeping_modes(model):
                model.eval()
                yield
        else:
            yield


def _logits(model: Any, inputs: Array) -> Array:
    outputs = call_model(model, Tensor(inputs))
    return np.asarray(outputs.data if isinstance(outputs, Tensor) else outputs)


def _batches(data: TensorDataset) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(data), EVALUATION_BATCH):
        inputs, targets = data[start : start + EVALUATION_BATCH]
        yield inputs.data, targets.data


def _digits_workload(name: str, model: Module, *, flat: bool) -> Workload:
    def evaluate(candidate: Any) -> Scores:
        return is_correct(candidate, digit_data(held_out=True, flat=flat))

    images, _ = draw_digits(CALIBRATION_BATCH * CALIBRATION_BATCHES, seed=TRAINING_SEED)
    return _workload(name, model, as_inputs(images, flat=flat), evaluate, "accuracy")


def _text_workload(name: str, model: Module) -> Workload:
    def evaluate(candidate: Any) -> Scores:
        return log_likelihood(candidate, text_data(held_out=True))

    windows = text_data(held_out=False).tensors[0].data
    chosen = np.linspace(0, len(windows) - 1, CALIBRATION_BATCH * CALIBRATION_BATCHES).astype(int)
    return _workload(name, model, windows[chosen], evaluate, "log-likelihood per character")


def _workload(
    name: str, model: Module, samples: Array, evaluate: Callable[[Any], Scores], metric: str
) -> Workload:
    """Use one training example as the input, and all of the samples for calibration."""
    load_checkpoint(WEIGHTS / f"{name}.safetensors", model)
    batches = np.split(samples, CALIBRATION_BATCHES)
    return Workload(
        name=name,
        model=model.eval(),
        inputs=(Tensor(samples[:1]),),
        calibration=tuple((Tensor(batch),) for batch in batches),
        evaluate=evaluate,
        metric=metric,
    )


ZOO: dict[str, Callable[[], Workload]] = {
    "mlp": lambda: _digits_workload("mlp", build_mlp(), flat=True),
    "cnn": lambda: _digits_workload("cnn", build_cnn(), flat=False),
    "gpt": lambda: _text_workload("gpt", build_gpt()),
}


def load_zoo(name: str) -> Workload:
    """Return a fresh copy of a trained model of the zoo as a workload."""
    if name not in ZOO:
        raise TargetError(f"the zoo has no {name!r}; it has {', '.join(ZOO)}")
    return ZOO[name]()
