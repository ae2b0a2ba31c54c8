"""How an entry of a suite is loaded with queries: the settings of the three scenarios.

They are in the manner of MLPerf Inference, which this project has no part in: results are not
those of MLPerf and must not be called so.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytorch.errors import SettingError
from tinytorch.measure.samples import values_needed

__all__ = [
    "SCENARIOS",
    "Offline",
    "Scenario",
    "Server",
    "SingleStream",
    "is_number",
    "is_whole",
    "scenario_fields",
    "scenario_from",
]

TIMES_NEEDED = 2
"""With just as many queries as a verdict takes, a single late one would leave it open."""


@dataclass(frozen=True)
class SingleStream:
    """One query after the other: how long does each take?

    It ends after so many `queries`, or when the budget is used up.
    """

    name: ClassVar[str] = "single-stream"
    queries: int = 1024
    budget_s: float | None = None

    def __post_init__(self) -> None:
        _check_queries(self.queries)
        _check_budget(self.budget_s)


@dataclass(frozen=True)
class Offline:
    """All queries are there at once and are worked off in batches: how many a second?"""

    name: ClassVar[str] = "offline"
    budget_s: float | None = None

    def __post_init__(self) -> None:
        _check_budget(self.budget_s)


@dataclass(frozen=True)
class Server:
    """Queries arrive at random (Poisson): how many a second, so that hardly any waits too long?

    `latency_bound_ms` must hold for `percentile` percent of the queries; without one it is five
    times the median that single queries take in the same process. Each rate that is tried gets at
    least so many `queries`, and more where they would be over in less than 20 times the bound;
    without a number, enough to show that the bound holds when a few are late.
    """

    name: ClassVar[str] = "server"
    latency_bound_ms: float | None = None
    percentile: float = 99.0
    queries: int | None = None
    budget_s: float | None = None

    def __post_init__(self) -> None:
        bound, share = self.latency_bound_ms, self.percentile
        if bound is not None and not (is_number(bound) and bound > 0):
            raise SettingError(f"latency_bound_ms = {bound!r}; give milliseconds above 0")
        if not (is_number(share) and 0 < share < 100):
            raise SettingError(f"percentile = {share!r}; give a number between 0 and 100")
        if self.queries is not None:
            _check_queries(self.queries)
        _check_budget(self.budget_s)

    @property
    def queries_per_rate(self) -> int:
        return self.queries or TIMES_NEEDED * values_needed(self.percentile)


Scenario = SingleStream | Offline | Server

SCENARIOS: dict[str, type[Scenario]] = {each.name: each for each in (SingleStream, Offline, Server)}


def scenario_fields(scenario: Scenario) -> dict[str, Any]:
    """Give a scenario, ready for JSON."""
    return {"name": scenario.name, **dataclasses.asdict(scenario)}


def scenario_from(fields: dict[str, Any]) -> Scenario:
    """Give back what :func:`scenario_fields` wrote."""
    settings = {name: value for name, value in fields.items() if name != "name"}
    return SCENARIOS[fields["name"]](**settings)


def is_number(value: object) -> bool:
    """Say whether this is a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Say whether this is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_queries(queries: object) -> None:
    if not is_whole(queries):
        raise SettingError(f"queries = {queries!r}; give a whole number above 0")


def _check_budget(budget_s: object) -> None:
    if budget_s is not None and not (is_number(budget_s) and budget_s > 0):  # type: ignore[operator]
        raise SettingError(f"budget_s = {budget_s!r}; give seconds above 0")
