"""Asking a PyTorch model with arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch


def forward_of(model: torch.nn.Module) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return a function from array to array; dtypes that NumPy does not have become float32."""
    model.eval()

    def forward(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with torch.inference_mode():
            output = model(torch.from_numpy(array))
            if isinstance(output, torch.Tensor):
                output = output.float() if output.dtype == torch.bfloat16 else output
                return output.cpu().numpy()
            logits: torch.Tensor = output.logits  # as models of transformers have it
            return logits.float().cpu().numpy()

    return forward
