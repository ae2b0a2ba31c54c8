"""What ran inside a block, by operation: names that people use, calls and time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tinytorch.adapters.costs import COSTS
from tinytorch.core.dispatch import recording

__all__ = ["OperationTotal", "OperationTotals", "operation_name"]

# The first word that occurs in the kind of an operation names it, forward and backward alike:
# first what contracts something, all else of which is a matrix multiplication.
PRODUCTS = (
    ("conv", "Convolution"),
    ("attention", "Attention"),
    ("encoder_layer", "Transformer layer"),
    ("rnn", "Recurrent layer"),
    ("lstm", "Recurrent layer"),
    ("gru", "Recurrent layer"),
    ("", "Matrix multiplication"),
)
WORDS = (
    *PRODUCTS[:-1],
    ("layer_norm", "Layer normalization"),
    ("batch_norm", "Batch normalization"),
    ("group_norm", "Group normalization"),
    ("rms_norm", "RMS normalization"),
    ("cross_entropy", "Cross entropy"),
    ("nll_loss", "Cross entropy"),
    ("mse_loss", "Squared error"),
    ("softmax", "Softmax"),
    ("max_pool", "Max pooling"),
    ("avg_pool", "Average pooling"),
    ("embedding", "Embedding look-up"),
    ("dropout", "Dropout"),
    ("gelu", "GELU"),
    ("relu", "ReLU"),
    ("threshold", "ReLU"),  # what PyTorch calls its derivative
    ("silu", "SiLU"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("adamw", "Adam update"),
    ("adam", "Adam update"),
    ("sgd", "SGD update"),
)
# Operations that the two frameworks call differently, without what stands before the last dot.
PLAIN = {
    "add": "Addition",
    "sub": "Subtraction",
    "subtract": "Subtraction",
    "mul": "Multiplication",
    "multiply": "Multiplication",
    "div": "Division",
    "divide": "Division",
    "neg": "Negation",
    "negative": "Negation",
    "pow": "Power",
    "power": "Power",
    "power_scalar": "Power",
    "sqrt": "Square root",
    "sum": "Sum",
    "mean": "Mean",
    "max": "Maximum",
    "amax": "Maximum",
    "cat": "Concatenation",
    "concatenate": "Concatenation",
    "getitem": "Indexing",
    "index": "Indexing",
    "copy": "Copy",
    "clone": "Copy",
    "_to_copy": "Copy",
    "reshape": "Reshape",
    "view": "Reshape",
    "t": "Transpose",
    "transpose": "Transpose",
}


@dataclass(frozen=True)
class OperationTotal:
    """All operations of one name inside a block; `share` is of the time of all operations."""

    name: str
    kinds: tuple[str, ...]
    calls: int
    seconds: float
    share: float


class OperationTotals:
    """Add up the operations of TinyTorch and, once torch is imported, of PyTorch."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, float]] = {}

    def see(self, kind: str, seconds: float) -> None:
        """Count one operation; PyTorch's marks for its own profiler are none."""
        if kind.startswith("profiler."):
            return
        calls, total = self._kinds.get(kind, (0, 0.0))
        self._kinds[kind] = calls + 1, total + seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what this thread runs inside the block."""
        with ExitStack() as watchers:
            watchers.enter_context(recording(lambda call: self.see(call.kind, call.duration)))
            if "torch" in sys.modules:
                from tinytorch.perf.profiling.operators_torch import OperatorClock, load_dispatcher

                load_dispatcher()
                watchers.enter_context(OperatorClock(self.see))
            yield

    @property
    def seconds(self) -> float:
        """The time of all operations together."""
        return sum(seconds for _, seconds in self._kinds.values())

    @property
    def operations(self) -> tuple[OperationTotal, ...]:
        """What ran, slowest first."""
        groups: dict[str, list[str]] = {}
        for kind in self._kinds:
            groups.setdefault(operation_name(kind), []).append(kind)
        everything = self.seconds or 1.0
        totals = []
        for name, kinds in groups.items():
            seconds = sum(self._kinds[kind][1] for kind in kinds)
            calls = sum(self._kinds[kind][0] for kind in kinds)
            totals.append(OperationTotal(name, tuple(kinds), calls, seconds, seconds / everything))
        return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def operation_name(kind: str) -> str:
    """Give the name that people use for a kind of operation.

    >>> operation_name("aten.addmm"), operation_name("layer_norm_backward")
    ('Matrix multiplication', 'Layer normalization')
    """
    rule = COSTS.get(kind)
    is_product = rule is not None and rule.family == "contraction"
    for word, name in PRODUCTS if is_product else WORDS:
        if word in kind:
            return name
    own = kind.rpartition(".")[2].removeprefix("_foreach_").removesuffix("_backward")
    return PLAIN.get(own) or own.strip("_").replace("_", " ").capitalize()
