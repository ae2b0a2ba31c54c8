"""Data sets and the loader that cuts them into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError

__all__ = ["DataLoader", "Dataset", "TensorDataset"]


class Dataset(Protocol):
    """Anything with a length and examples by number, each a tuple of arrays or tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> tuple[Any, ...]: ...


class TensorDataset:
    """Tensors of equal length; example i is the i-th row of each."""

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise SettingError("a data set needs at least one tensor, got none")
        self.tensors = tuple(t if isinstance(t, Tensor) else Tensor(t) for t in tensors)
        shapes = [tensor.shape for tensor in self.tensors]
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise ShapeError(f"tensors of a data set need one common length, got shapes {shapes}")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(Tensor(tensor.data[index]) for tensor in self.tensors)


class DataLoader:
    """Batches of a data set, in a new random order each epoch when shuffled.

    The order depends on `seed` and the number of the epoch alone. `set_epoch` goes to a given
    epoch, for example to resume.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise SettingError(f"batch_size must be at least 1, got {batch_size}")
        if seed is not None and seed < 0:
            raise SettingError(f"seed must be at least 0, got {seed}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = int(np.random.SeedSequence().entropy) if seed is None else seed  # type: ignore[arg-type]
        self.drop_last = drop_last
        self.epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = np.arange(len(self.dataset))
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        self.epoch += 1
        for number in range(len(self)):
            yield self._batch(order[number * self.batch_size : (number + 1) * self.batch_size])

    def _batch(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Tensor, ...]:
        if isinstance(self.dataset, TensorDataset):
            return self.dataset[indices]
        examples = [self.dataset[int(index)] for index in indices]
        if not all(isinstance(example, (tuple, list)) for example in examples):
            raise ShapeError("an example must be a tuple, such as (input, target) or (input,)")
        try:
            return tuple(
                Tensor(np.stack([_as_array(value) for value in values]))
                for values in zip(*examples, strict=True)
            )
        except ValueError as error:
            raise ShapeError(
                f"examples {indices.tolist()} do not make a batch, since they differ: {error}"
            ) from error


def _as_array(value: Any) -> Array:
    """Convert one value of an example to an array; Python floats become float32, ints int64."""
    if isinstance(value, Tensor):
        return value.data
    array = np.asarray(value)
    is_python_float = array.dtype == np.float64 and not isinstance(value, (np.ndarray, np.generic))
    return array.astype(np.float32) if is_python_float else array
