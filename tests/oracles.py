"""What computed numbers are compared with: PyTorch, and central differences."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.autograd import check_gradients
from tinytorch.core.dispatch import use_backend
from tinytorch.core.operations import Operation
from tinytorch.core.tensor import Tensor

DTYPES = (np.float32, np.float64)
BACKENDS = ("reference", "numpy")
VARIANTS = (
    (np.float32, "contiguous"),
    (np.float64, "contiguous"),
    (np.float32, "transposed"),
    (np.float64, "strided"),
)


class _Torch:
    """PyTorch, imported when a test first needs it; where it is missing, that test is skipped."""

    def __getattr__(self, name: str) -> Any:
        return getattr(require_part("torch"), name)


torch: Any = _Torch()


@dataclass(frozen=True)
class Case:
    """One differentiable function, written with tensors of ours and of PyTorch.

    ``terms`` is the length of the longest sum in it, forward or backward; inputs are drawn from
    the interval ``between``.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    terms: int = 1
    between: tuple[float, float] = (-2.0, 2.0)


def each(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Run a test with each case."""
    cases = list(cases)
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def every_way(test: Callable[..., None]) -> Any:
    """Run a test with both backends, in float32 and float64, and with odd layouts in memory."""
    names = [f"{np.dtype(dtype).name}-{layout}" for dtype, layout in VARIANTS]
    test = pytest.mark.parametrize(("dtype", "layout"), VARIANTS, ids=names)(test)
    return pytest.mark.parametrize("backend", BACKENDS)(test)


def draw(case: Case, dtype: Any, layout: str = "contiguous") -> list[np.ndarray]:
    rng = np.random.default_rng(20260)
    arrays = [np.asarray(rng.uniform(*case.between, shape), dtype) for shape in case.shapes]
    return [laid_out(array, layout) for array in arrays]


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """Give an equal array whose elements lie in memory in another way."""
    if layout == "contiguous" or array.ndim == 0:
        return array
    if layout == "transposed":
        return np.asfortranarray(array)
    wide = np.zeros([2 * length for length in array.shape], array.dtype)
    gaps = wide[(slice(None, None, 2),) * array.ndim]
    gaps[...] = array
    return gaps


def tolerance(expected: np.ndarray, terms: int) -> float:
    """Bound the difference of two careful computations of the same numbers.

    A sum of n terms is off by at most n eps times the largest partial sum. Both sides are, and
    around the sum stand a few elementary functions: 16 eps per term, relative to the largest
    result, or to 1, the size of the terms, where they cancel.
    """
    largest = float(np.max(np.abs(expected), initial=1.0))
    return 16 * max(terms, 1) * float(np.finfo(expected.dtype).eps) * largest


def assert_close(computed: Any, expected: Any, *, terms: int = 1) -> None:
    """Check shape, dtype and values against an array, or a tensor of PyTorch.

    Whole numbers and truth values must be equal, floats within their rounding.
    """
    if not isinstance(expected, np.ndarray | np.generic):
        expected = expected.detach().numpy()
    assert computed.shape == expected.shape
    assert computed.dtype == expected.dtype
    bound = tolerance(expected, terms) if expected.dtype.kind == "f" else 0
    np.testing.assert_allclose(computed, expected, rtol=0, atol=bound)


def check_against_torch(case: Case, *, dtype: Any, backend: str, layout: str) -> None:
    """Compare the result and all gradients.

    The gradient of the output comes in the layout that is asked for: dense, as a transposed view,
    or as one number that is broadcast.
    """
    arrays = draw(case, dtype, layout)
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    twins = [torch.tensor(np.array(array, order="C"), requires_grad=True) for array in arrays]
    expected = case.theirs(*twins)
    upstream = np.random.default_rng(7).uniform(-1, 1, tuple(expected.shape)).astype(dtype)
    if layout == "strided":
        upstream = np.ones_like(upstream)
    with use_backend(backend):
        output = case.ours(*tensors)
        assert_close(output.data, expected, terms=case.terms)
        if layout == "strided":
            output.sum().backward()
        elif layout == "transposed":
            output.permute(*reversed(range(output.ndim))).backward(upstream.T)
        else:
            output.backward(upstream)
    expected.backward(torch.tensor(upstream))
    for tensor, twin in zip(tensors, twins, strict=True):
        assert type(tensor.grad) is np.ndarray
        assert_close(tensor.grad, twin.grad, terms=case.terms)


def check_central_differences(case: Case, *, backend: str) -> None:
    tensors = [Tensor(array, requires_grad=True) for array in draw(case, np.float64)]
    with use_backend(backend):
        shape = case.ours(*tensors).shape
        weights = Tensor(np.random.default_rng(7).uniform(-1, 1, shape))
        # Differences of step 1e-6 are good to about 1e-12 (step squared) + 1e-10 (rounding of the
        # two values), so the 1e-5 of check_gradients leaves room for large third derivatives.
        check_gradients(lambda *inputs: (case.ours(*inputs) * weights).sum(), *tensors)


def check_every_operation_has_a_case(module: ModuleType, cases: Iterable[Case]) -> None:
    """Check that the cases together run each public operation of a module."""
    defined = {
        name
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Operation)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and not kind.__subclasses__()
    }
    exercised: set[str] = set()
    for case in cases:
        tensors = [Tensor(array, requires_grad=True) for array in draw(case, np.float64)]
        exercised |= {
            type(operation).__name__ for operation in operations_behind(case.ours(*tensors))
        }
    assert defined - exercised == set()


def operations_behind(tensor: Tensor) -> list[Operation]:
    """List every operation of the graph of a tensor."""
    found: dict[int, Operation] = {}
    pending = [tensor]
    while pending:
        operation = pending.pop().creator
        if operation is not None and id(operation) not in found:
            found[id(operation)] = operation
            pending.extend(operation.inputs)
    return list(found.values())


def unigram_entropy(text: str) -> float:
    """Return the entropy of single characters in nats: the best loss of a model without context."""
    counts = np.array(list(Counter(text).values()))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
