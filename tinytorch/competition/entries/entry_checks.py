"""What can be found against an entry before it competes, with public data alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np

from tinytorch.competition.entries.code_checks import check_code
from tinytorch.competition.entries.entry import PRECISIONS, Entry, EntryError, Technique, shown
from tinytorch.competition.entries.entry_trial import try_entry
from tinytorch.competition.entries.techniques import (
    KV_CACHE,
    implied_precision,
    missing_parts,
    resolve,
    why_not_in,
)
from tinytorch.competition.events import find_event
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.core.backends import Array
from tinytorch.core.checkpoints import KEY, OPTIMIZER_PREFIX, read_arrays
from tinytorch.errors import CheckpointError
from tinytorch.tuning.catalog import CATALOG
from tinytorch.workloads.zoo import WEIGHTS

__all__ = ["check_entry"]


def check_entry(entry: Entry, *, trust: bool = False, run: bool = True) -> tuple[Finding, ...]:
    """Give what is found against an entry, offline and in a few seconds.

    With `run`, and if nothing fatal is found by reading, the entry is built in a process of its own
    and answers public questions. Code runs only with `trust`.
    """
    findings = tuple(each for check in CHECKS for each in check(entry))
    if entry.code is not None and not trust:
        findings += (finding("E6", f"it is code: {entry.code}"),)
    if not run or any(each.is_fatal for each in findings):
        return findings
    return findings + try_entry(entry)


# ---------------------------------------------------------------- techniques


def _check_techniques(entry: Entry) -> Iterator[Finding]:
    """E3, E5, E8: what is declared is known, allowed, and can be done here."""
    for technique in entry.techniques:
        if entry.code is not None:
            if technique.transforms:
                yield finding(
                    "E3",
                    f"{technique.name} has transforms, and the entry is code",
                    "leave out the transforms: the code is told the names, and does the rest",
                )
            continue
        try:
            yield from _check_technique(entry, technique)
        except EntryError as error:
            yield error.finding


def _check_technique(entry: Entry, technique: Technique) -> Iterator[Finding]:
    resolve(technique)
    reason = why_not_in(entry.division, technique)
    if reason:
        yield finding("E5", reason)
    for extra in missing_parts(technique):
        yield finding(
            "E8",
            f"{technique.name} needs a part that is not installed",
            f"in the folder of TinyTorch: pip install '.[{extra}]'",
        )
    if technique.name == KV_CACHE and find_event(entry.event).model != "gpt":
        yield finding("E3", f"{KV_CACHE} is for text, and {entry.event} has none", "leave it out")


def _check_order(entry: Entry) -> Iterator[Finding]:
    """E3, a doubt: techniques of the catalog have places, and some find nothing after others."""
    if entry.code is not None:
        return
    known = {each.name: each for each in CATALOG}
    declared = [known[each.name] for each in entry.techniques if each.name in known]
    for first, second in pairwise(declared):
        if first.role == second.role:
            yield doubt(
                "E3",
                f"{first.name} and {second.name} are rivals",
                "see whether one of them is better",
            )
        elif first.place > second.place:
            yield doubt(
                "E3",
                f"{first.name} stands before {second.name}, which may then find less to do",
                f"put {second.name} first",
            )


def _check_precision(entry: Entry) -> Iterator[Finding]:
    """A4: no technique is less precise than what is declared. Only in closed it is decisive."""
    if entry.code is not None:
        return
    implied = {}
    for technique in entry.techniques:
        with suppress(EntryError):  # told already
            implied[technique.name] = implied_precision(technique)
    name = max(implied, key=lambda each: PRECISIONS.index(implied[each]), default=None)
    if name is None or PRECISIONS.index(implied[name]) <= PRECISIONS.index(entry.precision):
        return
    seen = f"{name} uses {implied[name]}, and the entry declares {entry.precision}"
    make = finding if entry.division == "closed" else doubt
    yield make("A4", seen, f'write "precision": "{implied[name]}"')


# ---------------------------------------------------------------- weights


def _check_weights(entry: Entry) -> Iterator[Finding]:
    """E4, E8: the file can be read; in closed it holds what the reference does."""
    if entry.weights is None:
        return
    try:
        arrays, metadata = read_arrays(entry.folder / entry.weights)
    except CheckpointError as error:
        yield finding("E8", str(error), "write it with save_checkpoint() or save_optimized()")
        return
    if entry.division != "closed":
        return
    if KEY in metadata:
        yield finding(
            "E4",
            f"{shown(entry.weights)} is a model that was changed before it was saved",
            "leave out the weights and declare the techniques, or enter the open division",
        )
        return
    reference, _ = read_arrays(WEIGHTS / f"{find_event(entry.event).model}.safetensors")
    ours = {name: each for name, each in arrays.items() if not name.startswith(OPTIMIZER_PREFIX)}
    other = [
        name
        for name in dict.fromkeys((*reference, *ours))
        if not _is_same(reference.get(name), ours.get(name))
    ]
    if other:
        yield finding(
            "E4",
            f"{shown(entry.weights)} is not the reference's: {len(other)} of {len(reference)} "
            f"tensors differ, the first is {shown(other[0])}",
        )


def _is_same(expected: Array | None, found: Array | None) -> bool:
    if expected is None or found is None or expected.dtype != found.dtype:
        return False
    return np.array_equal(expected, found)


CHECKS: tuple[Callable[[Entry], Iterator[Finding] | tuple[Finding, ...]], ...] = (
    _check_techniques,
    _check_order,
    _check_precision,
    _check_weights,
    check_code,
)
