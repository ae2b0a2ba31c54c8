"""The standard benchmarks: real held-out data, and what a model must reach on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinytorch.core.dataloader import TensorDataset
from tinytorch.workloads.zoo import digit_data, text_data

__all__ = ["STANDARD_BENCHMARKS", "StandardBenchmark"]

QUALITY_SHARE = 0.99
"""A model may lose one percent of the reference's accuracy, which is what quantization and pruning
usually have to keep within to be of use."""
FRAME_MS = 1000 / 60
"""The time between two frames of a display at 60 Hz: recognition that keeps up with a camera or a
pen."""
IMMEDIATE_MS = 100.0
"""Up to about 0.1 s people feel that a program reacts at once (R. B. Miller, Response time in
man-computer conversational transactions, 1968): text that follows typing."""


@dataclass(frozen=True)
class StandardBenchmark:
    """What a model is judged on: an input of `input_shape` gives one output for each class.

    `reference_accuracy` is what the model of that name in the zoo reaches on the same data. Targets
    are constants of the benchmark, whatever machine it runs on.
    """

    description: str
    load_data: Callable[[], TensorDataset]
    input_shape: tuple[int, ...]
    reference: str
    reference_accuracy: float
    target_latency_ms: float

    @property
    def target_accuracy(self) -> float:
        return QUALITY_SHARE * self.reference_accuracy


STANDARD_BENCHMARKS = {
    "digits_mlp": StandardBenchmark(
        description="read a drawn digit from 784 grey values; 5,000 held-out images",
        load_data=lambda: digit_data(held_out=True, flat=True),
        input_shape=(1, 784),
        reference="mlp",
        reference_accuracy=0.9758,
        target_latency_ms=FRAME_MS,
    ),
    "digits_cnn": StandardBenchmark(
        description="read a drawn digit from an image of 28 by 28; 5,000 held-out images",
        load_data=lambda: digit_data(held_out=True, flat=False),
        input_shape=(1, 1, 28, 28),
        reference="cnn",
        reference_accuracy=0.9930,
        target_latency_ms=FRAME_MS,
    ),
    "text_gpt": StandardBenchmark(
        description="predict each next character of 64; 1,069 held-out windows of English",
        load_data=lambda: text_data(held_out=True),
        input_shape=(1, 64),
        reference="gpt",
        reference_accuracy=0.6240,
        target_latency_ms=IMMEDIATE_MS,
    ),
}
