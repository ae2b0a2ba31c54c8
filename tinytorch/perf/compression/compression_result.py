"""What compressing a model gave: the model, its file, and what each stage did, measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.entropy import entropy_bytes
from tinytorch.perf.compression.compressed_model import State, as_floats, write_state
from tinytorch.showing import Shown
from tinytorch.workloads.plan import Skipped

__all__ = ["CompressionResult", "CompressionStage", "bound_bytes"]


@dataclass(frozen=True)
class CompressionStage:
    """A model on its way: `original`, `pruned` or `quantized`.

    sparsity: the share of the weights with two or more axes that are zero. file_bytes: the size of
    a plain file, with every number in its place. encoded_bytes: that of the compact file with the
    same numbers. Both were written. accuracy: the scores beside those of the original; None for
    the original itself, and where nothing could be evaluated.
    """

    name: str
    sparsity: float
    file_bytes: int
    encoded_bytes: int
    accuracy: AccuracyComparison | None = field(default=None, repr=False)  # it has every score

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        accuracy = None if self.accuracy is None else self.accuracy.to_dict()
        return {**vars(self), "accuracy": accuracy}


@dataclass(frozen=True, eq=False, repr=False)
class CompressionResult(Shown):
    """A compressed model, and the evidence.

    model: an ordinary float model, which holds exactly what `load_compressed` gives: the weights
    that the file stands for, in the dtypes of the original (whole numbers times their scale are
    float32, and are rounded once more where those are narrower). state: what the file holds; the
    bits of bfloat16 are an array of whole numbers. stages: what each step changed; the last one is
    the result. bound_bytes: a yardstick for the code of the file, see :func:`bound_bytes`.
    header_bytes: what names, shapes and settings take in the file, which is part of `file_bytes`.
    naive_parts: the factors whose product is often taken for the size. skipped: layers that were
    not pruned. notes: what to know before believing the numbers.
    """

    name: str
    model: Any
    state: State
    stages: tuple[CompressionStage, ...]
    bound_bytes: float
    header_bytes: int
    naive_parts: Mapping[str, float]
    baseline_score: float | None = None
    metric: str = "accuracy"
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    # ------------------------------------------------------------ sizes

    @property
    def original_bytes(self) -> int:
        """The size of the checkpoint of the original model."""
        return self.stages[0].file_bytes

    @property
    def file_bytes(self) -> int:
        """The size of the compressed file, as :meth:`save` writes it without metadata."""
        return self.stages[-1].encoded_bytes

    @property
    def ratio(self) -> float:
        """How many times smaller the compressed file is than the checkpoint."""
        return self.original_bytes / self.file_bytes

    @property
    def naive_ratio(self) -> float:
        """The product of the parts, which counts neither places of zeros, nor scales or biases."""
        return float(np.prod(list(self.naive_parts.values())))

    @property
    def bound_ratio(self) -> float | None:
        """How many times smaller `bound_bytes` are than the checkpoint; None if they are 0."""
        return self.original_bytes / self.bound_bytes if self.bound_bytes else None

    @property
    def above_bound(self) -> float | None:
        """By which share the file is larger than `bound_bytes`, header included; None at 0."""
        return self.file_bytes / self.bound_bytes - 1 if self.bound_bytes else None

    @property
    def coding_above_bound(self) -> float | None:
        """By which share the encoded numbers are larger than `bound_bytes`, without the header."""
        coded = self.file_bytes - self.header_bytes
        return coded / self.bound_bytes - 1 if self.bound_bytes else None

    # ------------------------------------------------------------ the rest

    @property
    def sparsity(self) -> float:
        return self.stages[-1].sparsity

    @property
    def accuracy(self) -> AccuracyComparison | None:
        """The scores of the result beside those of the original; None if nothing was evaluated."""
        return self.stages[-1].accuracy

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> int:
        """Write the compressed file, atomically; returns its bytes. `load_compressed` reads it."""
        return write_state(path, self.state, metadata)

    def to_dict(self) -> dict[str, Any]:
        """Give the numbers, ready for JSON, without the weights."""
        return {
            "name": self.name,
            "stages": [stage.to_dict() for stage in self.stages],
            "original_bytes": self.original_bytes,
            "file_bytes": self.file_bytes,
            "header_bytes": self.header_bytes,
            "bound_bytes": self.bound_bytes,
            "ratio": self.ratio,
            "naive_ratio": self.naive_ratio,
            "naive_parts": dict(self.naive_parts),
            "bound_ratio": self.bound_ratio,
            "above_bound": self.above_bound,
            "coding_above_bound": self.coding_above_bound,
            "baseline_score": self.baseline_score,
            "metric": self.metric,
            "skipped": [vars(each) for each in self.skipped],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        found = "not compared" if self.accuracy is None else self.accuracy.verdict
        names = " > ".join(stage.name for stage in self.stages)
        return (
            f"CompressionResult({self.name}, {names}: {self.file_bytes:,} bytes instead of "
            f"{self.original_bytes:,}, {self.sparsity:.1%} zeros, {self.metric} {found})"
        )


def bound_bytes(state: State) -> float:
    """Give what these numbers take if single values are coded, and the rest is kept as it is.

    Whole numbers with a scale take the zeroth-order entropy of their values: no code that knows how
    often each value occurs in the array, and nothing more, is shorter. Among floats only zeros are
    coded: where they are takes its entropy. All else counts with its full width: other floats,
    scales, zero points, and numbers such as the steps of a norm. What says which array it is, is
    not counted.

    It is a yardstick, not a limit. A code that sees more, such as zeros in rows or the exponents of
    floats, can take less.
    """
    total = 0.0
    for each in state.values():
        if isinstance(each, QuantizedArray):
            count = each.scale.size
            total += entropy_bytes(each.values) if each.values.size else 0.0
            total += each.scale.nbytes + (0 if each.scheme.symmetric else count)
            continue
        floats = as_floats(each)
        if floats.dtype.kind != "f":
            total += each.nbytes
            continue
        is_zero = floats == 0
        places = entropy_bytes(is_zero) if each.size else 0.0
        total += places + int((~is_zero).sum()) * each.itemsize
    return total
