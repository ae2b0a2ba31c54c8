"""A suite of benchmarks: what to measure, crossed with how, gives its entries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from tinytorch.core.backends import BACKENDS
from tinytorch.core.dispatch import active_backend
from tinytorch.errors import SettingError
from tinytorch.perf.benchmarking.references import located
from tinytorch.perf.benchmarking.scenario_settings import (
    SCENARIOS,
    Scenario,
    Server,
    is_number,
    is_whole,
    scenario_fields,
    scenario_from,
)
from tinytorch.workloads.record import canonical_json

__all__ = ["NO_TRANSFORM", "Entry", "Suite", "SuiteWorkload", "digest", "one_of"]

PROTOCOL = 1
"""Changes when a scenario is measured in another way, so that such results are not compared."""
NO_TRANSFORM = "none"
KEY_LENGTH = 16


@dataclass(frozen=True)
class Entry:
    """One thing to measure. `None` as a batch size or a backend leaves it as it is.

    Files in `target` and `transform` are found from `folder` on.
    """

    target: str
    scenario: Scenario
    batch_size: int | None = None
    backend: str | None = None
    transform: str = NO_TRANSFORM
    budget_s: float = 2.0
    seed: int = 0
    evaluate: bool = True
    folder: str = ""

    @property
    def name(self) -> str:
        """What it is called, from run to run: ``mlp/batch 1/numpy/none/single-stream``."""
        batch = "own batch" if self.batch_size is None else f"batch {self.batch_size}"
        parts = (self.target, batch, self.backend or "default", self.transform, self.scenario.name)
        return "/".join(parts)

    @property
    def budget(self) -> float:
        """The seconds of timing: those of the scenario where it has its own."""
        return self.scenario.budget_s or self.budget_s

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that must be equal for two results to be comparable.

        How long single queries or batches are timed is not: more of them only say it better. A
        search for a rate, however, ends elsewhere with another budget.
        """
        backend = self.backend or f"default ({active_backend().name})"
        settings: dict[str, Any] = {
            "protocol": PROTOCOL,
            "target": self.target,
            "batch_size": self.batch_size,
            "backend": backend,
            "transform": self.transform,
            "scenario": {"name": self.scenario.name},
        }
        for name, reference in (("target", self.target), ("transform", self.transform)):
            file = located(reference, self.folder)
            if file:
                settings[f"{name}_file"] = file
        if isinstance(self.scenario, Server):
            settings["scenario"] = scenario_fields(replace(self.scenario, budget_s=self.budget))
            settings["seed"] = self.seed
        return settings

    @property
    def key(self) -> str:
        """A short hash of all settings, those included that leave results comparable."""
        scenario = scenario_fields(replace(self.scenario, budget_s=self.budget))
        return digest([self.settings, scenario, self.evaluate])

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {**vars(self), "scenario": scenario_fields(self.scenario)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Entry:
        """Give back what :meth:`to_dict` wrote."""
        return cls(**{**fields, "scenario": scenario_from(fields["scenario"])})


@dataclass(frozen=True)
class SuiteWorkload:
    """A target and what it is crossed with; what is empty stays as the target has it."""

    target: str
    batch_sizes: Sequence[int] = ()
    backends: Sequence[str] = ()
    transforms: Sequence[str] = (NO_TRANSFORM,)
    scenarios: Sequence[str] = ("single-stream",)
    evaluate: bool = True

    def __post_init__(self) -> None:
        if not _is_text(self.target):
            raise SettingError(f"target = {self.target!r}; give a target as text")
        if not isinstance(self.evaluate, bool):
            raise SettingError(f"evaluate = {self.evaluate!r}; give true or false")
        for name in ("batch_sizes", "backends", "transforms", "scenarios"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        wrong = [size for size in self.batch_sizes if not is_whole(size)]
        if wrong:
            raise SettingError(f"batch_sizes has {wrong[0]!r}; give whole numbers above 0")
        for name, known in (("backends", BACKENDS), ("scenarios", SCENARIOS)):
            for each in getattr(self, name):
                if not _is_text(each) or each not in known:
                    raise SettingError(f"{name} has {each!r}; {one_of(each, known)}")
        for name in ("transforms", "scenarios"):
            if not getattr(self, name):
                raise SettingError(f"{name} is empty; leave it out, or name one")
        for each in self.transforms:
            if not _is_text(each):
                raise SettingError(f"transforms has {each!r}; give 'none' or module:function")


@dataclass(frozen=True)
class Suite:
    """What to measure. `scenarios` holds settings that differ from the usual ones.

    `budget_s` are the seconds of timing per entry, `timeout_s` is when an entry is given up.
    Relative files in targets and transforms are found from `folder` on.
    """

    name: str
    workloads: Sequence[SuiteWorkload]
    budget_s: float = 2.0
    timeout_s: float = 300.0
    scenarios: Sequence[Scenario] = field(default=())
    folder: str = ""

    def __post_init__(self) -> None:
        if not _is_text(self.name):
            raise SettingError(f"name = {self.name!r}; give the suite a name")
        for name in ("budget_s", "timeout_s"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise SettingError(f"{name} = {value!r}; give seconds above 0")
        object.__setattr__(self, "workloads", tuple(self.workloads))
        object.__setattr__(self, "scenarios", tuple(self.scenarios))
        if not self.workloads:
            raise SettingError("the suite has no workload; give at least one")
        for workload in self.workloads:
            if not isinstance(workload, SuiteWorkload):
                raise SettingError(f"workloads has a {type(workload).__name__}, no SuiteWorkload")
        names = [entry.name for entry in self.entries()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SettingError(f"{twice!r} is there twice; name every combination once")

    def entries(self, *, seed: int = 0) -> tuple[Entry, ...]:
        """Give every combination once, in a stable order."""
        usual = {name: kind() for name, kind in SCENARIOS.items()}
        settings = usual | {each.name: each for each in self.scenarios}
        return tuple(
            Entry(
                target=workload.target,
                scenario=settings[scenario],
                batch_size=batch_size,
                backend=backend,
                transform=transform,
                budget_s=self.budget_s,
                seed=seed,
                evaluate=workload.evaluate,
                folder=self.folder,
            )
            for workload in self.workloads
            for batch_size, backend, transform, scenario in product(
                workload.batch_sizes or (None,),
                workload.backends or (None,),
                workload.transforms,
                workload.scenarios,
            )
        )

    def with_budget(self, budget_s: float) -> Suite:
        """Give the suite with another budget for every entry, whatever its scenario says."""
        scenarios = tuple(replace(each, budget_s=None) for each in self.scenarios)
        return replace(self, budget_s=budget_s, scenarios=scenarios)

    def in_folder(self, folder: Path) -> Suite:
        """Give the suite with a place for its files, unless it has one."""
        return self if self.folder else replace(self, folder=str(folder.absolute()))


def digest(value: Any) -> str:
    """Give a short hash of something that is ready for JSON."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()[:KEY_LENGTH]


def one_of(word: object, known: Mapping[str, object] | Sequence[str]) -> str:
    """Say what is possible instead of a word that is not known."""
    near = get_close_matches(str(word), list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SettingError(f"{name} = {values!r}; give a list")
    return tuple(values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
