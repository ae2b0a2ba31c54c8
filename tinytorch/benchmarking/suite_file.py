"""Reading a suite from TOML, or from a Python function; everything is checked at once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tinytorch import reading
from tinytorch.core.dispatch import active_backend
from tinytorch.core.kernels import BACKENDS
from tinytorch.errors import SettingError, TinyTorchError, check_number, did_you_mean
from tinytorch.measure.samples import values_needed
from tinytorch.models.targets import check_reference, load_reference, located
from tinytorch.models.zoo import ZOO
from tinytorch.records.record import canonical_json

# ---------------------------------------------------------------- how an entry of a suite is
# loaded with queries: the settings of the three scenarios
#
# They are in the manner of MLPerf Inference, which this project has no part in: results are not
# those of MLPerf and must not be called so.

TIMES_NEEDED = 2
"""With just as many queries as a verdict takes, a single late one would leave it open."""


@dataclass(frozen=True)
class SingleStream:
    """One query after the other: how long does each take?

    It ends after `queries` queries, or when the time budget is used up.
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
    times the median that single queries take in the same process. Each rate gets at least
    `queries` queries, and more if they would take less than 20 times the bound; by default enough
    to show that the bound holds when a few are late.
    """

    name: ClassVar[str] = "server"
    latency_bound_ms: float | None = None
    percentile: float = 99.0
    queries: int | None = None
    budget_s: float | None = None

    def __post_init__(self) -> None:
        bound, share = self.latency_bound_ms, self.percentile
        if bound is not None:
            check_number("latency_bound_ms", bound, above=0)
        check_number("percentile", share, above=0, below=100)
        if self.queries is not None:
            _check_queries(self.queries)
        _check_budget(self.budget_s)

    @property
    def queries_per_rate(self) -> int:
        return self.queries or TIMES_NEEDED * values_needed(self.percentile)


@dataclass(frozen=True)
class AgainstBaseline:
    """The transformed model against the model as it is, in turns in one process: what is the ratio?

    It ends once the verdict is known, or when the time budget is used up. Accuracy may drop by
    `margin`, in the unit of the scores; what is worse, or has wrong outputs, is not timed.
    """

    name: ClassVar[str] = "comparison"
    budget_s: float | None = None
    margin: float = 0.01

    def __post_init__(self) -> None:
        _check_budget(self.budget_s)
        check_number("margin", self.margin, least=0)


Scenario = SingleStream | Offline | Server | AgainstBaseline

SCENARIOS: dict[str, type[Scenario]] = {
    each.name: each for each in (SingleStream, Offline, Server, AgainstBaseline)
}


def scenario_fields(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as JSON-serialisable fields."""
    return {"name": scenario.name, **dataclasses.asdict(scenario)}


def scenario_from(fields: dict[str, Any]) -> Scenario:
    """Read what :func:`scenario_fields` wrote."""
    settings = {name: value for name, value in fields.items() if name != "name"}
    return SCENARIOS[fields["name"]](**settings)


def is_whole(value: object) -> bool:
    """Return whether this is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_queries(queries: object) -> None:
    if not is_whole(queries):
        raise SettingError(f"queries = {queries!r}; give a whole number above 0")


def _check_budget(budget_s: object) -> None:
    if budget_s is not None:
        check_number("budget_s", budget_s, above=0)


# ---------------------------------------------------------------- a suite of benchmarks: what to
# measure, crossed with how, gives its entries

PROTOCOL = 1
"""Changes when a scenario is measured in another way, so that such results are not compared."""
NO_TRANSFORM = "none"
KEY_LENGTH = 16


@dataclass(frozen=True)
class Entry:
    """One thing to measure. `None` as a batch size or a backend leaves it unchanged.

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
        if isinstance(self.scenario, AgainstBaseline):
            settings["scenario"] = scenario_fields(replace(self.scenario, budget_s=None))
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
        """Return everything as plain JSON data."""
        return {**vars(self), "scenario": scenario_fields(self.scenario)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Entry:
        """Return what :meth:`to_dict` wrote."""
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
                    raise SettingError(f"{name} has {each!r}; {did_you_mean(each, known)}")
        for name in ("transforms", "scenarios"):
            if not getattr(self, name):
                raise SettingError(f"{name} is empty; leave it out, or name one")
        for each in self.transforms:
            if not _is_text(each):
                raise SettingError(
                    f"transforms has {each!r}; give 'none', module:function or a catalog entry"
                )


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
            check_number(name, getattr(self, name), above=0)
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
        """Return every combination once, in a stable order."""
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
        """Return the suite with this time budget for every entry, overriding its scenarios."""
        scenarios = tuple(replace(each, budget_s=None) for each in self.scenarios)
        return replace(self, budget_s=budget_s, scenarios=scenarios)

    def in_folder(self, folder: Path) -> Suite:
        """Return the suite with a folder for its files, unless it has one."""
        return self if self.folder else replace(self, folder=str(folder.absolute()))


def digest(value: Any) -> str:
    """Return a short hash of a JSON-serialisable value."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()[:KEY_LENGTH]


def catalog_stack(transform: str) -> tuple[str, ...]:
    """Return the catalog entries that a transform names, such as ``int8 + inference-mode``.

    Empty for "none" and for functions.
    """
    if transform == NO_TRANSFORM or ":" in transform:
        return ()
    return tuple(part.strip() for part in transform.split("+"))


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SettingError(f"{name} = {values!r}; give a list")
    return tuple(values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


# ---------------------------------------------------------------- reading a suite from TOML, or
# from a Python function; everything is checked at once

Made = TypeVar("Made")

SUITE_KEYS = ("name", "budget_s", "timeout_s", "workload", "scenario")
OWN_SETTINGS = ("name", "budget_s", "timeout_s")


def load_suite(place: str) -> Suite:
    """Load a suite from a TOML file, or from ``file.py:name`` or ``module:name``.

    In Python the name is that of a Suite, or of a function that returns one. Wrong keys, values,
    targets and transforms are a SettingError that names the file and the key. Nothing that is to
    be measured is imported.
    """
    if place.endswith(".toml"):
        suite = _from_toml(Path(place))
    elif ":" in place:
        suite = _from_python(place)
    else:
        hint = f"{place}:suite" if place.endswith(".py") else "suite.toml or file.py:suite"
        raise SettingError(f"{place!r} is no suite; give {hint}")
    _check_references(suite, place)
    return suite


def _from_toml(path: Path) -> Suite:
    try:
        fields = reading.read_toml(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingError(f"{path} is no TOML: {error}") from error
    _check_keys(fields, SUITE_KEYS, str(path))
    workloads = fields.get("workload")
    if not isinstance(workloads, list) or not workloads:
        raise SettingError(f"{path} has no workload; add a table [[workload]] with a target")
    made = [
        _make(SuiteWorkload, each, f"{path}: workload {number}")
        for number, each in enumerate(workloads, start=1)
    ]
    own = {name: fields[name] for name in OWN_SETTINGS if name in fields}
    own.setdefault("name", path.stem)
    return _naming(
        str(path),
        lambda: Suite(
            **own,
            workloads=made,
            scenarios=_scenarios(fields.get("scenario", {}), path),
            folder=str(path.absolute().parent),
        ),
    )


def _scenarios(tables: object, path: Path) -> list[Scenario]:
    if not isinstance(tables, Mapping):
        raise SettingError(f"{path}: scenario = {tables!r}; give tables such as [scenario.server]")
    _check_keys(tables, tuple(SCENARIOS), f"{path}: scenario")
    made: list[Scenario] = []
    for name, fields in tables.items():
        kind: Callable[..., Scenario] = SCENARIOS[name]
        made.append(_make(kind, fields, f"{path}: scenario.{name}"))
    return made


def _from_python(place: str) -> Suite:
    _naming(place, partial(check_reference, place, ""))
    found = load_reference(place)
    if not isinstance(found, Suite) and callable(found):
        try:
            found = found()
        except TinyTorchError:
            raise
        except Exception as error:
            raise SettingError(f"{place} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Suite):
        raise SettingError(f"{place} is a {type(found).__name__}; it must be or return a Suite")
    file = place.rpartition(":")[0]
    return found.in_folder(Path(file).parent if file.endswith(".py") else Path.cwd())


def _make(kind: Callable[..., Made], fields: object, where: str) -> Made:
    """Make settings from a table, naming the file and the key in what is wrong."""
    if not isinstance(fields, Mapping):
        raise SettingError(f"{where} is {fields!r}; give a table")
    known = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if kind is SuiteWorkload and "target" not in fields:
        raise SettingError(f"{where} has no target; give one of {', '.join(ZOO)}, or file.py:name")
    _check_keys(fields, known, where)
    return _naming(where, lambda: kind(**fields))


def _check_keys(fields: Mapping[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
    for key in fields:
        if key not in known:
            raise SettingError(f"{where} has the unknown key {key!r}; {did_you_mean(key, known)}")


def _check_references(suite: Suite, place: str) -> None:
    """Check that every target and transform exists, before any of them runs."""
    for number, workload in enumerate(suite.workloads, start=1):
        where = f"{place}: workload {number}"
        for key, names, references in (
            ("target", tuple(ZOO), (workload.target,)),
            ("transforms", (NO_TRANSFORM,), workload.transforms),
        ):
            for each in references:
                check = partial(check_reference, each, suite.folder, names=names)
                if key == "transforms" and (stack := catalog_stack(each)):
                    check = partial(_check_stack, stack)
                _naming(f"{where}: {key} {each!r}", check)


def _check_stack(stack: Sequence[str]) -> None:
    from tinytorch.tuning.catalog import find_entries  # only where a suite names some

    find_entries(stack)


def _naming(where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
