"""Times of calls on a CUDA device by events, which are read later and never waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Event: Any = torch.cuda.Event  # its type information says nothing of how it is called


def stamp_on(device: str) -> Callable[[], Any]:
    """Return a function that records an event on the stream that the device computes on now."""

    def stamp() -> Any:
        event = Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    return stamp


def event_seconds(begin: Any, end: Any) -> float:
    """Return the time between two events that the device has passed."""
    return float(begin.elapsed_time(end)) / 1e3
