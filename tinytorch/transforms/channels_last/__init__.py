"""ChannelsLast: the transform that lays out images with the channels of a pixel side by side."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.transforms.plan import TIME, TorchTransform, Variant


@dataclass(frozen=True)
class ChannelsLast(TorchTransform):
    """Use the channels-last memory format for images (4 axes) and volumes (5 axes).

    The kernels of convolutions in two and three dimensions are laid out so, and inputs when the
    model is called; layers in between pass the layout on. Outputs come back in the usual layout.
    The numbers stay the same, within the rounding of sums in another order. GPUs with units for
    matrix products like this layout in half precision; elsewhere it may well be slower.
    """

    variants = (
        Variant(
            "channels-last",
            "channels-last memory format",
            cost="inputs are copied into another memory format",
        ),
    )
    role, place, order = "layout", 5, 130
    risk, serves = "exact", TIME

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.channels_last import torch as channels_last_torch

        return channels_last_torch
