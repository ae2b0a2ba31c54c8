"""What pytest is asked for: options, ini settings, the marker, ``[tool.tinytorch]``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tinytorch import reading
from tinytorch.errors import did_you_mean

MARKER = (
    "perf(budget_s=..., group=..., runs=..., ...): how long to measure this test with the fixture "
    "perf, and what to group it with"
)
MEASURING = ("budget_s", "runs", "warmup", "min_runs", "max_runs", "inner_loops")
COMPARING = (
    "budget_s",
    "inputs",
    "factories",
    "floor",
    "band",
    "confidence",
    "precision",
    "margin",
    "evidence",
    "timeout_s",
    "names",
    "seed",
)
SORTS = ("name", "min", "max", "mean", "stddev", "median", "iqr", "ops")
GROUPINGS = ("group", "file", "function", "none")
LAST = "last"
SHORTEST_HASH = 4
PREFIX = "tinytorch_perf"


@dataclass(frozen=True)
class PerfSettings:
    """The options of one run."""

    is_strict: bool
    budget_s: float | None
    sort: str
    group_by: str
    save: bool
    store: str | None
    compare_with: str | None
    json_file: Path | None

    @property
    def budget_text(self) -> str:
        return "1 s" if self.budget_s is None else f"{self.budget_s:g} s"

    @property
    def waiting(self) -> dict[str, object]:
        """The options that have an effect only while measuring."""
        return {
            "--perf-save": self.save,
            "--perf-compare": self.compare_with,
            "--perf-json": self.json_file,
        }


def add_options(parser: pytest.Parser) -> None:
    """Add all options to a group."""
    group = parser.getgroup("perf", "measuring with tinytorch")
    _add(group, "--perf", "on", action="store_true", default=None, help="measure (default: off)")
    _add(group, "--no-perf", "on", action="store_false", help="do not, whatever the settings say")
    _add(
        group,
        "--perf-strict",
        "strict",
        action="store_true",
        default=False,
        help="what is inconclusive is a failure too, not just a line in the summary",
    )
    _add(group, "--perf-budget", "budget", type=float, metavar="S", help="seconds for each test")
    _add(
        group,
        "--perf-sort",
        "sort",
        choices=SORTS,
        default="median",
        help="column to sort the summary by (default median)",
    )
    _add(
        group,
        "--perf-group-by",
        "group_by",
        choices=GROUPINGS,
        default="group",
        help="how to group tests into tables (default: the group of the marker)",
    )
    _add(group, "--perf-save", "save", action="store_true", default=False, help="keep records")
    _add(
        group,
        "--perf-store",
        "store",
        metavar="FILE",
        help="where records are kept (default: $TINYTORCH_RECORDS, or this project's)",
    )
    _add(
        group,
        "--perf-compare",
        "compare_with",
        nargs="?",
        const=LAST,
        metavar="HASH|last",
        help="show the ratio to a stored run of the same machine and settings; in front of a "
        "path, write --perf-compare=last",
    )
    _add(group, "--perf-json", "json", metavar="FILE", help="write everything as JSON")
    parser.addini("perf", "measure with tinytorch, as --perf does", type="bool", default=False)


def _add(group: Any, option: str, name: str, **settings: Any) -> None:
    group.addoption(option, dest=f"{PREFIX}_{name}", **settings)


def is_worker(config: pytest.Config) -> bool:
    """Return whether this is a process of pytest-xdist."""
    return hasattr(config, "workerinput")


def is_on(config: pytest.Config) -> bool:
    """Return whether to measure: the option decides, then pytest's settings, then ours."""
    asked = config.getoption(f"{PREFIX}_on", None)
    if asked is not None:
        return bool(asked)
    return bool(config.getini("perf")) or _is_on_in_project(config.rootpath / "pyproject.toml")


def settings_of(config: pytest.Config) -> PerfSettings:
    """Read and check the options."""
    budget, json_file = _option(config, "budget"), _option(config, "json")
    if budget is not None and not 0 < budget < float("inf"):
        raise pytest.UsageError(f"--perf-budget {budget}: measuring needs some seconds")
    against = _option(config, "compare_with")
    if against is not None:
        _check_record(against)
    path = None if json_file is None else Path(json_file)
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise pytest.UsageError(f"--perf-json {path}: it cannot be written there")
    return PerfSettings(
        is_strict=_option(config, "strict"),
        budget_s=budget,
        sort=_option(config, "sort"),
        group_by=_option(config, "group_by"),
        save=_option(config, "save"),
        store=_option(config, "store"),
        compare_with=against,
        json_file=path,
    )


def marker_settings(item: pytest.Item) -> dict[str, Any]:
    """Return the settings of the marker `perf` of a test; nearer ones win."""
    found: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("perf"))):
        if marker.args:
            raise pytest.UsageError(f"{item.nodeid}: the marker perf takes settings by name only")
        found |= marker.kwargs
    known = dict.fromkeys(("group", *MEASURING, *COMPARING))
    for name in found:
        if name not in known:
            hint = did_you_mean(name, known)
            raise pytest.UsageError(f"{item.nodeid}: the marker perf has no {name!r}; {hint}")
    return found


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"{PREFIX}_{name}")


def _check_record(text: str) -> None:
    if text == LAST:
        return
    if len(text) < SHORTEST_HASH or set(text.lower()) - set("0123456789abcdef"):
        raise pytest.UsageError(
            f"--perf-compare {text}: give 'last' or the start of a record's hash; in front of a "
            f"path, write --perf-compare=last {text}"
        )


def _is_on_in_project(file: Path) -> bool:
    """Read `perf` in ``[tool.tinytorch]``."""
    try:
        settings = reading.read_toml(file)
    except OSError:
        return False
    except ValueError as error:
        raise pytest.UsageError(f"{file}: {error}") from error
    table: Any = settings
    for name in ("tool", "tinytorch"):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    asked = table.get("perf", False) if isinstance(table, dict) else False
    if not isinstance(asked, bool):
        raise pytest.UsageError(f"{file}: [tool.tinytorch] perf = {asked!r}; write true or false")
    return asked
