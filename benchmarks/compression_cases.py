"""What compression.py measures: models of the zoo, compressed and trained, each made once."""

from __future__ import annotations

import lzma
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.optimizers import Adam
from tinytorch.core.tensor import Tensor
from tinytorch.core.training import CosineSchedule
from tinytorch.formats.affine import QuantizedArray
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Scores, Workload
from tinytorch.models.zoo import (
    build_cnn,
    build_mlp,
    digit_data,
    is_correct,
    load_zoo,
    text_data,
)
from tinytorch.transforms.compressed_file import load_compressed, save_compressed
from tinytorch.transforms.compression import CompressionResult
from tinytorch.transforms.distillation import KnowledgeDistillation
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.support.training import CubicSchedule, fine_tune

MARGIN = 0.01
LEAST_SPARSITY, MOST_MACS = 0.85, 0.5
PRUNING_SHARE = 0.7
"""The part of a gradual training after which all zeros are there."""
STUDENT_WIDTH, STUDENT_RATE = 16, 2e-3
BUILDERS: Mapping[str, Callable[[], Any]] = {"mlp": build_mlp, "cnn": build_cnn}


HALVED = {
    f"{importance}, round_to={multiple}": RemoveChannels(
        macs=MOST_MACS, importance=importance, round_to=multiple
    )
    for multiple in (8, 1)
    for importance in ("magnitude", "activation")
}
RECOMMENDED = ("magnitude, round_to=8", "activation, round_to=8")
"""Those that are judged: kernels work on blocks of channels, and the rest of a block is wasted."""


@dataclass(frozen=True)
class Effort:
    """How much of everything, and how long to measure."""

    images: int = 20_000
    windows: int = 19_221
    epochs: Mapping[str, int] = field(default_factory=lambda: {"mlp": 3, "cnn": 6})
    rounding_epochs: Mapping[str, int] = field(default_factory=lambda: {"mlp": 1, "cnn": 2})
    structure_epochs: int = 2
    sparsities: tuple[float, ...] = (LEAST_SPARSITY, 0.9, 0.95)
    rows: tuple[int, ...] = (1, 32, 256)
    shapes: tuple[tuple[int, int], ...] = ((128, 64), (784, 128), (512, 512), (1024, 1024))
    students: tuple[tuple[int, int], ...] = ((20_000, 3), (1_000, 60))
    """How many images a student sees, and how often."""
    seeds: int = 5
    budget_s: float = 3.0
    crossover_s: float = 1.5
    is_judged: bool = True


QUICK = Effort(
    images=1280,
    windows=160,
    epochs={"mlp": 1, "cnn": 1},
    rounding_epochs={"mlp": 1, "cnn": 1},
    structure_epochs=1,
    sparsities=(0.9,),
    rows=(1, 32),
    shapes=((784, 128),),
    students=((640, 2),),
    seeds=2,
    budget_s=0.1,
    crossover_s=0.2,
    is_judged=False,
)


@cache
def zoo(name: str) -> Workload:
    return load_zoo(name)


@cache
def scores_of(name: str) -> Scores:
    """Give the scores of the float model as it ships."""
    workload = zoo(name)
    assert workload.evaluate is not None
    return workload.evaluate(workload.model)


def evaluated(name: str, model: Any) -> AccuracyComparison:
    """Give the scores of a model beside those of the float model, on held-out examples."""
    workload = zoo(name)
    assert workload.evaluate is not None
    found = workload.evaluate(model)
    return compare_accuracy(scores_of(name), found, margin=MARGIN, metric=workload.metric)


def with_rows(name: str, rows: int, model: Any = None) -> Workload:
    """Give a workload of the zoo, or another model in its place, with so many images in a call."""
    workload = zoo(name)
    images = digit_data(held_out=True, flat=name == "mlp").tensors[0].data[:rows]
    return replace(
        workload,
        model=workload.model if model is None else model,
        inputs=(Tensor(images),),
        evaluate=None,
    )


def applied(workload: Workload, transform: Transform) -> Any:
    return transform.apply(workload, transform.plan(workload))


def held_bytes(model: Any) -> int:
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A compressed model, and its scores beside those of the float model."""

    model: Any
    accuracy: AccuracyComparison


@dataclass
class Candidates:
    """Makes compressed models, and keeps them for the next section that asks for the same one.

    `images` and `windows` say how much of the training data is used.
    """

    images: int
    windows: int
    _made: dict[object, Candidate] = field(default_factory=dict)

    def batches(self, name: str) -> DataLoader:
        if name == "gpt":
            return self._loader(text_data(held_out=False), self.windows, 32)
        return self._loader(digit_data(held_out=False, flat=name == "mlp"), self.images, 64)

    @staticmethod
    def _loader(examples: TensorDataset, count: int, batch_size: int) -> DataLoader:
        inputs, targets = (tensor.data for tensor in examples.tensors)
        chosen = np.random.default_rng(0).permutation(len(inputs))[:count]
        part = TensorDataset(inputs[chosen], targets[chosen])
        return DataLoader(part, batch_size=batch_size, shuffle=True, seed=0)

    def at_once(self, name: str, transform: Transform) -> Candidate:
        """Give the model without any training."""
        return self._once(name, (transform,), lambda: applied(zoo(name), transform))

    def tuned(self, name: str, transform: Transform, epochs: int, *, rate: float) -> Candidate:
        """Give the model after some training with Adam, whose rate falls along a cosine."""
        batches = self.batches(name)

        def make() -> Any:
            return fine_tune(
                zoo(name),
                batches,
                transform,
                epochs=epochs,
                optimizer=lambda parameters: Adam(parameters, lr=rate),
                lr_schedule=CosineSchedule(rate, epochs * len(batches)),
            )

        return self._once(name, (transform, epochs, rate), make)

    def gradual(self, name: str, transform: Prune, epochs: int) -> Candidate:
        """Give the model pruned during the training, with the defaults of `fine_tune`."""
        batches = self.batches(name)
        schedule = CubicSchedule(steps=max(1, round(PRUNING_SHARE * epochs * len(batches))))

        def make() -> Any:
            return fine_tune(zoo(name), batches, transform, epochs=epochs, schedule=schedule)

        return self._once(name, (transform, epochs, "gradual"), make)

    def _once(self, name: str, way: tuple[object, ...], make: Callable[[], Any]) -> Candidate:
        key = (name, *way)
        if key not in self._made:
            model = make()
            self._made[key] = Candidate(model, evaluated(name, model))
        return self._made[key]

    def students(self, images: int, epochs: int, *, seed: int) -> tuple[float, float]:
        """Train a small student twice, on labels and with a teacher; give both accuracies."""
        scores = []
        for has_teacher in (False, True):
            batches = self._loader(digit_data(held_out=False, flat=True), images, 64)
            rng = np.random.default_rng(seed)
            student = Sequential(
                Linear(28 * 28, STUDENT_WIDTH, rng=rng), ReLU(), Linear(STUDENT_WIDTH, 10, rng=rng)
            )
            optimizer = Adam(student.parameters(), lr=STUDENT_RATE)
            schedule = CosineSchedule(STUDENT_RATE, epochs * len(batches))
            if has_teacher:
                distillation = KnowledgeDistillation(zoo("mlp").model, student)
                distillation.fit(batches, optimizer, epochs, schedule=schedule)
            else:
                student.fit(batches, optimizer=optimizer, epochs=epochs, schedule=schedule)
            scores.append(float(is_correct(student, digit_data(held_out=True, flat=True)).mean()))
        return scores[0], scores[1]


# ---------------------------------------------------------------- files


def file_bytes(model: Any, bits: int | None = None) -> int:
    """Give the size of the compact file, with every float as it is or with whole numbers."""
    with tempfile.TemporaryDirectory() as folder:
        return save_compressed(Path(folder) / "model", model, bits=bits)


def check_file(result: CompressionResult) -> None:
    """End it all unless the file has the size that was told, and gives every bit back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        written = result.save(path)
        loaded, _ = load_compressed(path, BUILDERS[result.name]())
        size = path.stat().st_size
    back, kept = dict(loaded.named_parameters()), dict(result.model.named_parameters())
    is_same = back.keys() == kept.keys() and all(
        back[name].data.tobytes() == each.data.tobytes() for name, each in kept.items()
    )
    if not is_same or not written == size == result.file_bytes:
        raise SystemExit(f"{result.name}: the file does not give back what was saved")


def general_bytes(result: CompressionResult) -> dict[str, int]:
    """Give what general compressors make of the same numbers, whole ones packed, without names."""
    dense = b"".join(_dense_bytes(each) for each in result.state.values())
    return {
        "dense": len(dense),
        "zlib": len(zlib.compress(dense, 9)),
        "lzma": len(lzma.compress(dense, preset=9 | lzma.PRESET_EXTREME)),
    }


def _dense_bytes(each: Array | QuantizedArray) -> bytes:
    if not isinstance(each, QuantizedArray):
        return each.tobytes()
    values = each.values.reshape(-1)
    if each.scheme.bits == 4:  # two to a byte
        low, high = values[::2], np.zeros(-(-values.size // 2), np.int8)
        high[: values.size // 2] = values[1::2]
        values = (low & 15) | (high << 4)
    return values.tobytes() + np.asarray(each.scale).tobytes()
