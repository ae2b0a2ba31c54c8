"""Collectives and links alone, on the ranks and at the sizes of a program, after its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from tinytorch.scale.rank_file import Site

REPEATS, WARM = 7, 2
MOST_SITES = 12
LINK_BYTES, LINK_TURNS = 1 << 19, 12


def _sharded(call: Callable[..., Any], is_gather: bool) -> Callable[[torch.Tensor, Any], None]:
    def run(whole: torch.Tensor, group: Any) -> None:
        size = dist.get_world_size(group)
        part = whole[: whole.numel() // size]
        whole = whole[: part.numel() * size]
        call(*((whole, part) if is_gather else (part.clone(), whole)), group=group)

    return run


def _reduce(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def _broadcast(tensor: torch.Tensor, group: Any) -> None:
    dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)


BARE: dict[str, Callable[[torch.Tensor, Any], None]] = {
    "allreduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _sharded(dist.all_gather_into_tensor, is_gather=True),
    "_allgather_base": _sharded(dist.all_gather_into_tensor, is_gather=True),
    "reduce_scatter": _sharded(dist.reduce_scatter_tensor, is_gather=False),
    "_reduce_scatter_base": _sharded(dist.reduce_scatter_tensor, is_gather=False),
}
"""Kind of a collective -> the same alone; what is not here has no ceiling."""


def measure_ceilings(
    sites: Mapping[Site, int], groups: Mapping[str, Any]
) -> Iterator[tuple[int, float]]:
    """Yield the place of a site and the seconds of its collective alone: the median of some.

    All ranks of a group have the same sites and take them in the same order. The largest come
    first; every repetition follows a barrier, since there is no step to disturb here.
    """
    chosen = sorted(
        (each for each in sites if each.kind.strip("_") in _KINDS and each.nbytes),
        key=lambda each: (-each.nbytes, each.group, each.kind, each.dtype),
    )
    # Ranks of several groups may have chosen differently: only what all of its ranks take is taken.
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [tuple(each) for each in chosen[:MOST_SITES]])
    for site in chosen[:MOST_SITES]:
        if not all(tuple(site) in everyone[rank] for rank in site.ranks):
            continue
        run, group = BARE[_KINDS[site.kind.strip("_")]], groups[site.group]
        dtype = getattr(torch, site.dtype)
        tensor = torch.zeros(site.nbytes // dtype.itemsize, dtype=dtype, device=_device(group))
        seconds = []
        for _ in range(WARM + REPEATS):
            dist.barrier(group)
            begin = perf_counter()
            run(tensor, group)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            seconds.append(perf_counter() - begin)
        yield sites[site], median(seconds[WARM:])


_KINDS = {name.strip("_"): name for name in BARE}


def _device(group: Any) -> str:
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def measure_links() -> Iterator[tuple[int, int, float]]:
    """Yield sender, receiver and bytes per second where this rank receives from a neighbour.

    One link at a time, both directions of every pair of neighbours in the ring, in turns: what
    disturbs the machine for a while meets all of them.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [(each, (each + 1) % world) for each in range(world) if world > 1]
    links = list(dict.fromkeys([*pairs, *((there, here) for here, there in pairs)]))
    data = torch.zeros(LINK_BYTES, dtype=torch.uint8, device=_device(dist.group.WORLD))
    asked = data.new_zeros(1)
    for turn in range(1 + LINK_TURNS):
        for sender, receiver in links:
            if rank == receiver:
                # What this rank sent before may still be underway, with the question behind it.
                dist.send(asked, sender)
                dist.recv(asked, sender)
                begin = perf_counter()
                dist.recv(data, sender)
                data[:1].item()  # waits for a device
                if turn:  # The first one makes the connection.
                    yield sender, receiver, LINK_BYTES / (perf_counter() - begin)
            elif rank == sender:
                dist.recv(asked, receiver)
                dist.send(asked, receiver)
                dist.send(data, receiver)
