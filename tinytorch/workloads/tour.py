"""What ``tinytorch tour`` does: train the models of the zoo for a moment, and try them out.

Each model is trained from scratch with few steps and then evaluated on held-out data, beside the
model with the shipped weights and beside a score that needs no learning at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import Array
from tinytorch.core.dataloader import TensorDataset
from tinytorch.core.dispatch import active_backend
from tinytorch.core.transformers import GPT
from tinytorch.workloads import zoo
from tinytorch.workloads.corpus import load_corpus, split_corpus, unigram_entropy
from tinytorch.workloads.train import RECIPES, train_model

__all__ = ["SampleDigit", "Tour", "TrainedModel", "take_tour"]

STEPS = {"mlp": 300, "cnn": 150, "gpt": 150}
TEXT_WINDOWS = 256
SHOWN_DIGITS = 5
PROMPT = "It is a truth universally "
NEW_CHARACTERS = 160

Watch = Callable[[str, int, int], None]
"""Told what is going on, how many training steps are done, and of how many in all."""


@dataclass(frozen=True)
class TrainedModel:
    """One model: trained here for a moment, and as shipped, on the same held-out examples.

    Scores are means over `examples`, higher is better. `without_learning` is what the best
    constant answer scores: the share of the most frequent class, or the negative entropy of
    single characters.
    """

    name: str
    parameters: int
    steps: int
    training_s: float
    losses: tuple[float, ...]
    metric: str
    examples: int
    without_learning: float
    fresh_score: float
    shipped_score: float

    @property
    def works(self) -> bool:
        """Tell whether both beat what needs no learning, and more training helped."""
        return (
            self.without_learning < self.fresh_score and self.without_learning < self.shipped_score
        )


@dataclass(frozen=True)
class SampleDigit:
    """A held-out image (28, 28), its label, and what the shipped CNN sees in it."""

    image: Array
    label: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class Tour:
    """Everything that the tour shows."""

    backend: str
    seed: int
    models: tuple[TrainedModel, ...]
    digits: tuple[SampleDigit, ...]
    prompt: str
    fresh_text: str
    shipped_text: str

    @property
    def works(self) -> bool:
        return all(model.works for model in self.models)


def take_tour(seed: int = 0, watch: Watch | None = None) -> Tour:
    """Train, evaluate and try the models of the zoo. Takes about a minute on two cores."""
    done, total = 0, sum(STEPS.values())

    def tell(text: str, steps: int = 0) -> None:
        nonlocal done
        done += steps
        if watch is not None:
            watch(text, done, total)

    tell("drawing digits")
    trained = {name: _train(name, seed, tell) for name in RECIPES}
    tell("trying them out")
    return Tour(
        backend=active_backend().name,
        seed=seed,
        models=tuple(model for model, _ in trained.values()),
        digits=_read_digits(zoo.load_zoo("cnn").model, seed),
        prompt=PROMPT,
        fresh_text=_write(trained["gpt"][1], seed),
        shipped_text=_write(zoo.load_zoo("gpt").model, seed),
    )


def _train(name: str, seed: int, tell: Callable[..., None]) -> tuple[TrainedModel, Any]:
    recipe, losses = RECIPES[name], []

    def on_step(done: int, total: int, loss: float) -> None:
        losses.append(loss)
        tell(f"training {name}", 1)

    recipe.load_data(False)  # drawn once and kept, so that it does not count as training
    start = perf_counter()
    model, _ = train_model(name, seed=seed, steps=STEPS[name], on_step=on_step)
    seconds = perf_counter() - start
    tell(f"evaluating {name}")
    held_out = recipe.load_data(True)
    if name == "gpt":
        held_out = TensorDataset(*held_out[:TEXT_WINDOWS])
    workload = zoo.load_zoo(name)
    result = TrainedModel(
        name=name,
        parameters=model.num_parameters(),
        steps=len(losses),
        training_s=seconds,
        losses=tuple(losses),
        metric=workload.metric,
        examples=len(held_out),
        without_learning=_score_without_learning(name, held_out),
        fresh_score=float(recipe.score(model, held_out).mean()),
        shipped_score=float(recipe.score(workload.model, held_out).mean()),
    )
    return result, model


def _score_without_learning(name: str, held_out: TensorDataset) -> float:
    if name == "gpt":
        return -unigram_entropy(split_corpus(load_corpus())[1])
    labels = held_out.tensors[1].data
    return float(np.bincount(labels).max() / len(labels))


def _read_digits(cnn: Any, seed: int) -> tuple[SampleDigit, ...]:
    data = zoo.digit_data(held_out=True, flat=False)
    chosen = np.random.default_rng(seed).choice(len(data), SHOWN_DIGITS, replace=False)
    images, labels = data[chosen]
    with no_grad():
        logits = cnn(images).data.astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return tuple(
        SampleDigit(image[0], int(label), int(row.argmax()), float(row.max()))
        for image, label, row in zip(images.data, labels.data, probabilities, strict=True)
    )


def _write(gpt: GPT, seed: int) -> str:
    tokens = zoo.tokenizer()
    ids = gpt.generate(
        tokens.encode(PROMPT), NEW_CHARACTERS, temperature=0.7, top_p=0.95, seed=seed
    )
    return tokens.decode(ids.data)[len(PROMPT) :]
