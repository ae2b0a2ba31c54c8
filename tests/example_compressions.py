"""Imaginary compressed models, for tests."""

import numpy as np

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.measure.samples import Samples
from tinytorch.transforms.compression import CompressionResult, CompressionStage
from tinytorch.transforms.deployment import Deployment


def result(**changes):
    """Give what compressing a model 16 times gave, by pruning and quantizing, at no loss."""
    accuracy = compare_accuracy([1, 1, 0, 1] * 250, [1, 1, 0, 1] * 250)
    fields = {
        "name": "mlp",
        "model": None,
        "state": {"w": np.zeros((3, 2), np.float32)},
        "stages": (
            CompressionStage("original", 0.0, 4096, 3500),
            CompressionStage("pruned", 0.75, 4096, 1100, accuracy),
            CompressionStage("quantized", 0.8, 900, 256, accuracy),
        ),
        "bound_bytes": 200.0,
        "header_bytes": 46,
        "naive_parts": {"zeros": 4.0, "bits": 8.0},
        "baseline_score": 0.75,
    }
    return CompressionResult(**fields | changes)


def deployment(budgets, **changes):
    """Give a report of a model in which everything was measured; one answer of 2,000 is lost."""
    fields = {
        "name": "mlp",
        "file_bytes": 3 * 2**20,
        "original_bytes": 30 * 2**20,
        "load": Samples("load", tuple(0.001 * n for n in range(5, 16))),
        "latency": Samples("latency", (0.002,) * 20),
        "peak_bytes": 2**20,
        "accuracy": compare_accuracy([1, 1, 0, 1] * 500, [1, 1, 0, 1] * 499 + [1, 1, 0, 0]),
    }
    return Deployment(budgets=budgets, **fields | changes)
