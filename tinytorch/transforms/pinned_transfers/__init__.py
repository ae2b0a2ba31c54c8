"""PinnedTransfers: inputs go to a CUDA device through memory that the device can read by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.transforms.plan import TIME, TorchTransform

__all__ = ["PinnedTransfers", "prefetching"]

NAME = "PinnedTransfers"


@dataclass(frozen=True)
class PinnedTransfers(TorchTransform):
    """Copy inputs from the processor to a model on a CUDA device without waiting for each copy.

    Each input goes through a buffer of pinned memory, from which the device fetches it while the
    program goes on. Buffers are used again for inputs of the same shapes, and only once the device
    has fetched what is in them. The plan compares that with the plain `.to(device)` in turns, and
    names it only where it is shown to be faster.
    """

    order = 160
    risk, serves = "exact", TIME
    follows_weights = True

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.pinned_transfers import torch as pinned_transfers_torch

        return pinned_transfers_torch


def prefetching(loader: Iterable[Any], device: Any) -> Iterator[Any]:
    """Yield the batches of a loader on a device, the next one on its way while one is computed.

    Batches are tensors, or tuples, lists and dictionaries with tensors in them; anything else in
    them stays as it is. The transfer runs on a stream of its own; a batch is whole before anything
    that is done with it on the current stream begins. On a processor, batches are given as they
    come. A loader may use its own buffers again: it is asked for the next batch only when the last
    one has left them.
    """
    if "torch" not in sys.modules:
        raise SettingError("prefetching moves tensors of PyTorch; import torch before")
    from tinytorch.transforms.pinned_transfers.torch import prefetched

    return prefetched(loader, device)
