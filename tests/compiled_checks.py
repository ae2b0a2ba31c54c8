"""What holds for every compiled kernel, checked on the calls of `kernel_calls`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from kernel_calls import IN_PLACE, Call, kernel_calls
from oracles import VARIANTS, assert_close

from tinytorch.core.kernels import REFERENCE, Kernel

CALLS = {dtype: kernel_calls(dtype) for dtype in (np.float32, np.float64)}


def results_of(kernels: Mapping[str, Kernel], kind: str, call: Call) -> list[np.ndarray]:
    """Give every array that a kernel computed, also those that it changed in place."""
    result = kernels[kind](*call.arguments, **call.settings)
    results = result if isinstance(result, tuple) else (result,)
    changed = [call.arguments[position] for position in IN_PLACE.get(kind, ())]
    return [array for array in (*results, *changed) if array is not None]


def check_like_reference(
    kernels: Mapping[str, Kernel], kind: str, call: Call, layout: str = "contiguous"
) -> None:
    """Compare one call with the reference, and see that inputs stay as they are."""
    used, kept = call.copied(layout), call.copied("contiguous")
    computed = results_of(kernels, kind, used)
    for position, (after, before) in enumerate(zip(used.arguments, kept.arguments, strict=True)):
        if isinstance(before, np.ndarray) and position not in IN_PLACE.get(kind, ()):
            np.testing.assert_array_equal(after, before)
    expected = results_of(REFERENCE.kernels, kind, kept)
    assert len(computed) == len(expected)
    for ours, theirs in zip(computed, expected, strict=True):
        assert_close(ours, theirs, terms=call.terms)


def check_every_call(kernels: Mapping[str, Kernel], kind: str) -> None:
    """Compare all calls of a kind in every dtype and layout, and with inputs that are read-only."""
    for dtype, layout in VARIANTS:
        for call in CALLS[dtype][kind]:
            check_like_reference(kernels, kind, call, layout)
    for call in CALLS[np.float32][kind]:
        locked = call.copied("contiguous")
        for position, array in arrays_in(locked):
            array.flags.writeable = position in IN_PLACE.get(kind, ())
        expected = results_of(kernels, kind, call.copied("contiguous"))
        for ours, theirs in zip(results_of(kernels, kind, locked), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def arrays_in(call: Call) -> Iterator[tuple[int, Any]]:
    for position, value in enumerate(call.arguments):
        if isinstance(value, np.ndarray):
            yield position, value


def signatures_of(module: Any) -> dict[str, int]:
    """Count for how many types each kernel of a module was compiled, at most."""
    kernels = {name: value for name, value in vars(module).items() if hasattr(value, "parallel")}
    return {
        name: max(len(kernel.serial.signatures), len(kernel.parallel.signatures))
        for name, kernel in kernels.items()
    }
