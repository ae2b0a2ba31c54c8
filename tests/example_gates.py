"""Results of imaginary gates, for tests. Run as a file, it rebuilds the golden summary."""

from pathlib import Path

from example_comparisons import comparison

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.measure.estimate import Estimate
from tinytorch.records.gate_result import GateResult, TargetResult
from tinytorch.reporting.gate import gate_document
from tinytorch.reporting.markdown import write

GOLDEN = Path(__file__).parent / "reporting" / "golden_gate.md"


def timed(target="bench.py:make", ratio=1.0, *, tolerance=0.05, spread=0.002, **changes):
    """Give the result of a target that was measured."""
    found = comparison(ratio, spread=spread, n=9, seconds_used=2.5)
    fields = {"ratio": found.ratio, "comparison": found, "seconds_used": 2.5}
    return TargetResult(target, tolerance, **(fields | changes))


def every_verdict():
    """Give a gate with one target of each verdict."""
    better = compare_accuracy([1, 0] * 500, [1, 0] * 500)
    worse = compare_accuracy([1, 0] * 500, [0, 0] * 500)
    rows = (
        TargetResult("failed", 0.05, candidate_error="candidate raised ValueError: a | b\n<c> `d`"),
        timed("bench.py:slower", 1.5, record="a1b2c3d4e5f6a1b2"),
        timed("less_accurate", 1.0, accuracy=worse),
        TargetResult(
            "broken",
            0.05,
            candidate_error="candidate fails: A: x",
            baseline_error="baseline fails: A: y",
        ),
        timed("doubtful", 1.05, spread=0.05, notes=("much noise here",)),
        timed("faster", 0.5, accuracy=better, outputs="outputs differ by up to 0.1"),
        TargetResult("fresh", 0.05, is_new=True),
    )
    return GateResult("main (0123456789ab)", "the working tree", rows, ("both are_odd",))


def same_outputs():
    """Give what comparing an output with itself shows."""
    return compare_outputs([[1.0]], [[1.0]])


def interval(value, low, high):
    return Estimate(value, low, high)


if __name__ == "__main__":
    GOLDEN.write_text(write(gate_document(every_verdict())), "utf-8")
