"""quick_profile: the most important numbers of a model, printed and returned."""

from __future__ import annotations

from typing import Any

from tinytorch.perf.profiling.profiler import Profiler
from tinytorch.showing import profiling_reports

__all__ = ["quick_profile"]


def quick_profile(model: Any, x: Any, profiler: Profiler | None = None) -> dict[str, Any]:
    """Profile the forward pass of a model, print the result, and return it.

    It is what :meth:`Profiler.profile_forward_pass` gives.
    """
    facts = (profiler or Profiler()).profile_forward_pass(model, x)
    reports = profiling_reports()
    reports.show(reports.render_quick_profile(facts))
    return facts
