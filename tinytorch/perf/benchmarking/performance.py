"""Performance: time, memory and accuracy of a model, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinytorch.errors import ModelError
from tinytorch.measure.device_clock import fitting_clock
from tinytorch.measure.samples import Interval, Samples
from tinytorch.perf.benchmarking.checks import check_budget, check_count, failure_text
from tinytorch.perf.benchmarking.examples import read_examples
from tinytorch.perf.benchmarking.interleaved import time_in_turns
from tinytorch.perf.benchmarking.intervals import mean_interval
from tinytorch.perf.benchmarking.names import named_models
from tinytorch.perf.benchmarking.scoring import ACCURACY
from tinytorch.perf.benchmarking.subject import Subject, make_subject, ready_together

__all__ = ["Performance", "measure_performance", "measure_subjects"]

MS = 1e3
MB = 2**20


@dataclass(frozen=True)
class Performance:
    """What a call of a model takes, and how good its outputs are.

    `samples` are the raw seconds per call, `scores` those of each example in the order of the
    data, `metric` the name of their mean. `examples` is the number of examples in a call, None
    where it cannot be told. A model that failed has an `error` and nothing else.
    """

    name: str
    samples: Samples | None = field(default=None, repr=False)
    peak_bytes: int | None = None
    size_bytes: int | None = None
    metric: str | None = None
    scores: tuple[float, ...] = field(default=(), repr=False)
    examples: int | None = None
    framework: str | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def is_failed(self) -> bool:
        return self.error is not None

    @property
    def time(self) -> float | None:
        """Median milliseconds of a call."""
        return self.samples.median * MS if self.samples else None

    @property
    def time_interval(self) -> Interval | None:
        """The interval of the median in milliseconds, from order statistics."""
        return self.samples.scaled(MS, "ms").median_interval() if self.samples else None

    @property
    def memory(self) -> float | None:
        """Most MB (2**20 bytes) that a call holds at once, parameters and inputs included."""
        return None if self.peak_bytes is None else self.peak_bytes / MB

    @property
    def size(self) -> float | None:
        """MB that parameters and buffers hold."""
        return None if self.size_bytes is None else self.size_bytes / MB

    @property
    def score(self) -> float | None:
        """The mean score by `metric`; None without anything to evaluate on."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def accuracy(self) -> float | None:
        """The fraction of right answers; None without labels, or where scores mean something else.

        See :func:`tinytorch.perf.benchmarking.scoring.score_outputs` for what counts as right.
        """
        return self.score if self.metric == ACCURACY else None

    @property
    def score_interval(self) -> Interval | None:
        """The interval of the mean score; Wilson's where every answer is right or wrong."""
        return mean_interval(self.scores) if self.scores else None

    @property
    def throughput(self) -> float | None:
        """Examples per second, at the median time."""
        if self.samples is None or self.examples is None or not self.samples.median:
            return None
        return self.examples / self.samples.median

    def speedup_over(self, baseline: Performance) -> float | None:
        """Give the baseline's time over this one's: more than 1 means faster than the baseline.

        Two models that were measured one after the other met different moments of the machine;
        :func:`benchmark_suite` measures in turns and gives an interval.
        """
        if not self.time or baseline.time is None:
            return None
        return baseline.time / self.time

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: failed, {self.error}"
        scored = f", {self.metric} {self.score:.4g}" if self.metric else ""
        return f"{self.name}: {self.time:.4g} ms per call, {self.memory:.4g} MB{scored}"

    def to_dict(self) -> dict[str, Any]:
        """Give everything that was observed, and the numbers to quote, ready for JSON."""
        interval = self.time_interval
        return {
            "name": self.name,
            "time_ms": self.time,
            "time_low_ms": interval.low if interval else None,
            "time_high_ms": interval.high if interval else None,
            "time_confidence": interval.confidence if interval else None,
            "memory_mb": self.memory,
            "size_mb": self.size,
            "accuracy": self.accuracy,
            "metric": self.metric,
            "score": self.score,
            "examples": self.examples,
            "throughput": self.throughput,
            "framework": self.framework,
            "device": self.device,
            "samples": self.samples.to_dict() if self.samples else None,
            "scores": list(self.scores),
            "notes": list(self.notes),
            "error": self.error,
        }


def measure_performance(
    model: Any,
    data: Any = None,
    *,
    budget_s: float = 0.5,
    batch_size: int | None = None,
    name: str | None = None,
) -> Performance:
    """Measure time, memory and, where there are targets, accuracy of a model.

    `model` is a layer of TinyTorch, a module of PyTorch, anything with `forward` or that can be
    called, a Workload, or a target such as ``"mlp"``. `data` are inputs, or inputs with targets in
    any form that :func:`~tinytorch.perf.benchmarking.examples.read_examples` knows; without them
    the example inputs of the model are used: those of a Workload, or of the size of its first
    layer. A timed call has the first batch of a loader, or the first 32 examples of arrays, or
    `batch_size` of them. Accuracy is over all examples.

    The model is measured in evaluation mode and without gradients, and left as it was. Timing
    takes about `budget_s` seconds; on a GPU every value runs until the device is done.

    >>> from tinytorch.core.layers import Linear
    >>> performance = measure_performance(Linear(8, 2), budget_s=0.01)
    >>> performance.time > 0, performance.size * 2**20, performance.accuracy
    (True, 72.0, None)
    """
    check_budget(budget_s)
    if batch_size is not None:
        check_count("batch_size", batch_size, at_least=1)
    (own_name,) = named_models([model])
    examples = None if data is None else read_examples(data)
    subject = make_subject(name or own_name, model, examples=examples, batch_size=batch_size)
    with subject.ready():
        subject.check()
    (found,) = measure_subjects({subject.name: lambda: subject}, budget_s=budget_s).values()
    if found.error is not None:
        raise ModelError(f"{subject.name} worked at first, and later failed: {found.error}")
    return found


def measure_subjects(
    makers: Mapping[str, Callable[[], Subject]], *, budget_s: float, seed: int = 0
) -> dict[str, Performance]:
    """Measure several models, timed in turns; one that fails is marked and the others go on.

    `budget_s` is for timing each of them.
    """
    with ExitStack() as stack:
        subjects, failures = ready_together(makers, stack)
        rng = np.random.default_rng(seed)
        times = time_in_turns(subjects, budget_s=budget_s, clock=fitting_clock(), rng=rng)
        failures |= times.failures
        found = {}
        for name, samples in times.samples.items():
            try:
                found[name] = _performance(subjects[name], samples)
            except Exception as error:
                failures[name] = failure_text(error)
    failed = {name: Performance(name, error=error) for name, error in failures.items()}
    return {name: (found | failed)[name] for name in makers}


def _performance(subject: Subject, samples: Samples) -> Performance:
    """Add memory and scores to the times of a model that is ready."""
    memory = subject.memory()
    scored = subject.evaluate() if subject.evaluate else None
    notes = [*memory.notes, *samples.notes, *(scored.notes if scored else ())]
    if scored is not None and not np.isfinite(scored.scores).all():
        raise ModelError(f"some scores ({scored.metric}) are not finite: the outputs are broken")
    if scored is not None and scored.metric != ACCURACY:
        notes.append(f"no accuracy: the data is scored by {scored.metric}")
    return Performance(
        name=subject.name,
        samples=samples,
        peak_bytes=memory.peak_bytes,
        size_bytes=memory.held_bytes,
        metric=scored.metric if scored else None,
        scores=scored.scores if scored else (),
        examples=subject.examples,
        framework=subject.adapter.name,
        device=subject.device,
        notes=tuple(notes),
    )
