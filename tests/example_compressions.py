"""Imaginary compressed models, for tests."""

import numpy as np

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.transforms.compression import CompressionResult, CompressionStage


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
