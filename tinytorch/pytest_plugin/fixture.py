"""The fixture `perf`: measures and compares inside of a test."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pytest

from tinytorch.errors import ModelError, SettingError
from tinytorch.pytest_plugin.options import (
    COMPARING,
    MEASURING,
    is_on,
    is_worker,
    marker_settings,
    settings_of,
)

if TYPE_CHECKING:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.measure.samples import Samples

__all__ = ["Perf", "entries_of"]

OFF = "comparing takes time and is off; give --perf"
ENTRIES = pytest.StashKey[list[str]]()

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def entries_of(item: pytest.Item) -> list[str]:
    """Give what was measured in a test: lines of JSON, which every process can send."""
    return item.stash.get(ENTRIES, [])


class Perf:
    """Measure a function in a test, or compare two; without ``--perf`` tests only check results."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        self.is_on = is_on(node.config)
        self.samples: Samples | None = None
        """What the last call of this object has measured."""
        self._options = settings_of(node.config)
        self._marked = marker_settings(node)
        node.stash[ENTRIES] = []

    def __repr__(self) -> str:
        return "perf"

    def __call__(
        self,
        function: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Call a function and give its result; when measuring is on, call it again and again.

        The result is that of the first call.
        """
        __tracebackhide__ = True
        result = function(*args, **kwargs)
        if not self.is_on:
            return result
        _refuse_lazy(result, function)
        from tinytorch.measure.device_clock import fitting_clock
        from tinytorch.measure.timing import measure_time

        settings = self._settings(MEASURING)
        clock = fitting_clock()
        call = partial(function, *args, **kwargs) if args or kwargs else function
        samples = measure_time(call, name="latency", clock=clock, **settings)
        self.samples = samples.with_notes(*self._doubts())
        self._keep({"samples": self.samples.to_dict(), "settings": settings, "clock": clock.name})
        return result

    def compare(self, baseline: Any, candidate: Any, **settings: Any) -> Comparison:
        """Compare two things as :func:`tinytorch.compare` does, with its settings.

        Its `verdict` is about time alone; accuracy and outputs are beside it. Without
        ``--perf`` the test is skipped.
        """
        __tracebackhide__ = True
        comparison = self._compare(baseline, candidate, settings)
        self._keep({"comparison": comparison.to_dict()})
        return comparison

    def assert_not_slower(
        self, baseline: Any, candidate: Any, *, tolerance: float = 0.05, **settings: Any
    ) -> Comparison:
        """Fail when the candidate is shown to take more than `tolerance` longer, or to be worse.

        It is worse with less accuracy, when it cannot be evaluated, and with broken outputs: of
        another number or shape, or not finite where the baseline's are (``evidence=False`` looks
        at time alone). What is not shown either way, about time or accuracy, is named in the
        summary, and a failure with ``--perf-strict``. Without ``--perf`` the test is skipped.
        """
        __tracebackhide__ = True
        if not 0 < tolerance < 10:
            raise SettingError(f"tolerance={tolerance}; it must be a share such as 0.05")
        if not self.is_on:
            pytest.skip(OFF)
        from tinytorch.comparison.expectations import stays_within
        from tinytorch.comparison.quality import quality_doubt, quality_loss
        from tinytorch.reporting.forest_plot import ratio_text

        settings.setdefault("is_known", lambda ratio: stays_within(ratio, tolerance) is not None)
        found = self._compare(baseline, candidate, settings)
        is_within = None if found.contradiction else stays_within(found.ratio, tolerance)
        ends = f"{ratio_text(found.time_ratio_low)} to {ratio_text(found.time_ratio_high)}"
        shown = (
            f"{ratio_text(found.time_ratio)} the time ({ends}), n={found.n} rounds, "
            f"tolerance {100 * tolerance:.3g}%"
        )
        open_time = f"not shown whether it is slower: {shown}" if is_within is None else ""
        open_question = "; ".join(filter(None, (open_time, quality_doubt(found))))
        self._keep({"comparison": found.to_dict(), "open": open_question})
        if loss := quality_loss(found):
            pytest.fail(loss)
        if is_within is False:
            pytest.fail(f"{found.candidate_name} is slower than {found.baseline_name}: {shown}")
        if open_question and self._options.is_strict:
            pytest.fail(f"{open_question}; --perf-strict wants it shown")
        return found

    def _compare(self, baseline: Any, candidate: Any, settings: dict[str, Any]) -> Comparison:
        __tracebackhide__ = True
        if not self.is_on:
            pytest.skip(OFF)
        from tinytorch.comparison.compare import compare

        found = compare(baseline, candidate, **{**self._settings(COMPARING), **settings})
        return found.with_notes(*self._doubts())

    def _settings(self, known: tuple[str, ...]) -> dict[str, Any]:
        budget = {} if self._options.budget_s is None else {"budget_s": self._options.budget_s}
        marked = {name: value for name, value in self._marked.items() if name in known}
        return {**budget, **marked}

    def _keep(self, entry: dict[str, Any]) -> None:
        entries = self._node.stash[ENTRIES]
        again = f" ({len(entries) + 1})" if entries else ""
        place, _, _ = self._node.nodeid.partition("::")
        named = {
            "name": self._node.nodeid + again,
            "file": place,
            "function": getattr(self._node, "originalname", None) or self._node.name,
            "group": str(self._marked.get("group", "")),
        }
        entries.append(json.dumps({**named, **entry}))

    def _doubts(self) -> list[str]:
        doubts = []
        if is_worker(self._node.config):
            count = self._node.config.workerinput["workercount"]  # type: ignore[attr-defined]
            if count > 1:
                doubts.append(f"doubtful: measured beside other processes of pytest (-n {count})")
        if _is_traced():
            doubts.append("coverage or a debugger was watching, which slows Python code down")
        return doubts


def _refuse_lazy(result: object, function: object) -> None:
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ModelError(
            f"{getattr(function, '__name__', 'the function')} returned a "
            f"{type(result).__name__}, which has computed nothing yet; measure a function that "
            "runs it to the end"
        )


def _is_traced() -> bool:
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(
        monitoring.get_tool(each) for each in (monitoring.COVERAGE_ID, monitoring.DEBUGGER_ID)
    )
