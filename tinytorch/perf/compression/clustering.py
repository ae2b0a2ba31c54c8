"""Clusters of numbers: k-means in one dimension, where it can be solved instead of guessed.

Sorted numbers that share a cluster are neighbours, so the best clusters are found by dynamic
programming over where they end (Wang and Song, 2011). Many numbers are put into groups first, fine
where clusters will be small, and the ends moved afterwards to where no single one is better
elsewhere (Lloyd, 1982). There is no randomness in it.
"""

from __future__ import annotations

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.errors import SettingError

__all__ = ["codes_for", "find_codebook"]

EXACT = 512
"""So many different numbers are clustered exactly, whatever the number of clusters."""
GROUPS_PER_CLUSTER = 8
"""More numbers become groups: so many for each cluster, and at least `EXACT`."""
BLOCK = 64
"""So many ends of clusters are tried at once."""
MOST_ROUNDS = 200


def find_codebook(values: Array, clusters: int) -> Array:
    """Give at most `clusters` numbers, ascending, that stand for `values` with little error.

    The error is the sum of squares. It is the least there is for up to 512 different values, or
    eight for each cluster; with more, the clusters are the best ones of so many groups, from which
    each value has then moved to the nearest mean. If there is a zero among the values, it is an
    entry of its own, the first one, so that what is zero stays so.
    """
    if clusters < 2:
        raise SettingError(f"numbers are put into at least 2 clusters, got {clusters}")
    ordered = np.sort(values.reshape(-1).astype(np.float64))
    rest = ordered[ordered != 0]
    has_zero = rest.size < ordered.size
    found = _means(rest, clusters - has_zero) if rest.size else rest
    codebook = np.concatenate([[0.0], found]) if has_zero else found
    return codebook.astype(values.dtype)


def codes_for(values: Array, codebook: Array) -> Array:
    """Give the number of the nearest entry for each value, as integers of the same shape.

    If there are zeros, an entry of zero in the first place is for them alone, as in
    :func:`find_codebook`.
    """
    zeros = values == 0
    has_zero = bool(codebook[0] == 0 and zeros.any())
    entries = codebook[has_zero:]
    if not entries.size:
        return np.zeros(values.shape, np.int64)
    # in float64, so that the middle between two entries does not fall onto one of them
    middles = (entries[1:].astype(np.float64) + entries[:-1]) / 2
    codes = np.searchsorted(middles, values.astype(np.float64), side="right") + has_zero
    if has_zero:
        codes[zeros] = 0
    return codes


def _means(ordered: Array, clusters: int) -> Array:
    """Give the means of the best clusters of sorted numbers."""
    groups, counts = _groups(ordered, max(EXACT, GROUPS_PER_CLUSTER * clusters))
    if len(groups) <= clusters:
        return groups
    starts = _best_starts(groups, counts, clusters)
    places = np.concatenate([[0], np.cumsum(counts)])[starts]  # in `ordered`
    return _refined(ordered, places)


def _groups(ordered: Array, most: int) -> tuple[Array, Array]:
    """Give the different numbers and how often they occur, or the means of neighbours.

    The best clusters are as dense as the cube root of the density of the numbers (Panter and Dite,
    1951), and so are the groups. The density around a gap between two numbers is one over the gap,
    so that each gap is worth its size to the power of 2/3. Nothing is finer than single numbers:
    a gap that is worth more than a group is between two of them, and the others share the rest.
    """
    different, counts = np.unique(ordered, return_counts=True)
    if len(different) <= most:
        return different, counts
    worth = np.diff(different) ** (2 / 3)
    for _ in range(MOST_ROUNDS):
        share = worth.sum() / most
        if worth.max() <= share * (1 + 1e-6):
            break
        worth = np.minimum(worth, share)
    passed = np.floor(np.cumsum(worth) / share * (1 - 1e-9)).astype(np.int64)  # whole groups
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(passed, prepend=0))])
    sizes = np.add.reduceat(counts, starts)
    return np.add.reduceat(different * counts, starts) / sizes, sizes


def _best_starts(groups: Array, counts: Array, clusters: int) -> Array:
    """Give where each of the best clusters of weighted, sorted numbers begins."""
    number = len(groups)
    error = _errors(groups, counts)
    best, choice = error[:, 0].copy(), np.zeros(number + 1, np.int64)
    choices = []
    for _ in range(clusters - 1):
        before, best = best, np.full(number + 1, np.inf)
        earlier, choice = choice, np.zeros(number + 1, np.int64)
        for first in range(1, number + 1, BLOCK):
            last = min(first + BLOCK, number + 1)
            # with one cluster more, or a later end, the last one does not begin earlier
            least = max(earlier[first], choice[first - 1])
            total = before[least:last] + error[first:last, least:last]
            picked = total.argmin(axis=1)
            choice[first:last] = least + picked
            best[first:last] = total[np.arange(last - first), picked]
        choices.append(choice)
    starts, end = [], number
    for chosen in reversed(choices):
        end = int(chosen[end])
        starts.append(end)
    return np.array([0, *reversed(starts)])


def _errors(groups: Array, counts: Array) -> Array:
    """Give the error [j, i] of a cluster of the groups from i to j, without j; else infinity.

    Distances are those from the first group of a cluster, so that numbers far away from it take no
    digits from it.
    """
    number = len(groups)
    error = np.full((number + 1, number + 1), np.inf)
    for start in range(number):
        distances, weights = groups[start:] - groups[start], counts[start:]
        first = np.cumsum(weights * distances)
        second = np.cumsum(weights * distances**2)
        error[start + 1 :, start] = second - first**2 / np.cumsum(weights)
    return error


def _mean_between(ordered: Array, starts: Array) -> Array:
    sizes = np.diff(np.append(starts, ordered.size))
    means: Array = np.add.reduceat(ordered, starts) / sizes
    return means


def _refined(ordered: Array, starts: Array) -> Array:
    """Move the ends of clusters until each number is in the one whose mean is nearest."""
    for _ in range(MOST_ROUNDS):
        means = _mean_between(ordered, starts)
        moved = np.searchsorted(ordered, (means[1:] + means[:-1]) / 2)
        moved = np.concatenate([[0], moved])
        if np.array_equal(moved, starts):
            break
        starts = np.unique(moved[moved < ordered.size])  # a cluster that lost all is gone
    return _mean_between(ordered, starts)
