"""compare_ranks: two configurations of a distributed step, in turns inside of one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tinytorch.comparison.compare import NAMES, compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError

BUILD, STEP, END = range(3)
Step = Callable[[], object]


def compare_ranks(
    baseline: Callable[[], Step],
    candidate: Callable[[], Step],
    *,
    budget_s: float = 20.0,
    names: Sequence[str] = NAMES,
    seed: int = 0,
) -> Comparison:
    """Time the steps of two configurations in turns; every rank calls it and gets the result.

    Each side is a function that builds model and optimizer, in all ranks alike, and returns the
    function that makes one step. Rank 0 decides who is next, when both are built anew and when the
    answer is known, as :func:`tinytorch.compare` does, and tells the others before each step. The
    times are rank 0's: the collectives of a step make it wait for the others.
    """
    if not dist.is_initialized():
        raise SettingError("there is no process group; call init_process_group in all ranks first")
    sides = (baseline, candidate)
    channel = dist.new_group(backend="gloo")
    answer: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            answer[0] = compare(
                *(_led(side, place, channel) for place, side in enumerate(sides)),
                factories=True,
                evidence=False,
                budget_s=budget_s,
                names=names,
                seed=seed,
            )
        finally:
            _tell(channel, END, 0)
    else:
        _follow(sides, channel)
    dist.broadcast_object_list(answer, 0, group=channel)
    dist.destroy_process_group(channel)
    found: Comparison = answer[0]
    return found


def _led(build: Callable[[], Step], place: int, channel: Any) -> Callable[[], Step]:
    """Return a factory that makes all ranks build, and a step that all ranks make."""

    def build_everywhere() -> Step:
        _tell(channel, BUILD, place)
        step = build()

        def step_everywhere() -> object:
            _tell(channel, STEP, place)
            return step()

        return step_everywhere

    return build_everywhere


def _follow(sides: Sequence[Callable[[], Step]], channel: Any) -> None:
    """Do what rank 0 says until it is at the end."""
    built: dict[int, Step] = {}
    while True:
        order, place = _tell(channel)
        if order == END:
            return
        if order == BUILD:
            built.pop(place, None)
            built[place] = sides[place]()
        else:
            built[place]()


def _tell(channel: Any, *message: int) -> list[int]:
    """Send a message from rank 0, or return it elsewhere."""
    held = torch.tensor(message or (0, 0))
    dist.broadcast(held, 0, group=channel)
    found: list[int] = held.tolist()
    return found
