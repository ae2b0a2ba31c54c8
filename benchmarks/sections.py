"""Run a benchmark section by section: its options, its targets, and how it ends.

Import this before NumPy, as interleaving.py, which sets the threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from interleaving import THREADS

# isort: split
from generation_tables import header, row
from quantization_tables import Target

from tinytorch.core.dispatch import set_backend

BUSY = 0.5
"""A load average from which on other programs take part in what is timed."""


class HasTargets(Protocol):
    """A benchmark; `effort` is a dataclass, and `raw` has the values that were measured."""

    effort: Any
    targets: list[Target]
    raw: dict[str, Any]


AnyBenchmark = TypeVar("AnyBenchmark", bound=HasTargets)


def run_sections(
    sections: Mapping[str, Callable[[AnyBenchmark], None]],
    make: Callable[[bool], AnyBenchmark],
    *,
    about: str,
    quick: tuple[str, str],
    setting: Mapping[str, Any] | None = None,
) -> int:
    """Run the sections that the command line names, and give the exit code.

    The first line of a section's docstring is its heading. `make` gives the benchmark and is told
    whether it has to be quick; `quick` says in the help, and then above the tables, what that
    means. Models compute on the compiled backend. The code is 1 if a target is missed, and 3 if
    one is not shown.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--quick", action="store_true", help=f"less of everything; {quick[0]}")
    parser.add_argument("--json", type=Path, help="write raw values here")
    options = parser.parse_args()
    described = _described(setting or {})
    print(", ".join(f"{name} {value}" for name, value in described.items()))
    if described["load average before"] > BUSY:
        print("\n**The machine is busy**: believe no time.")
    if options.quick:
        print(f"\n**Quick**: {quick[1]}")
    set_backend("numba")
    benchmark = make(options.quick)
    for name in options.only:
        heading = (sections[name].__doc__ or name).splitlines()[0].rstrip(".")
        print(f"\n## {heading}\n", flush=True)
        sections[name](benchmark)
    _show(benchmark.targets)
    if options.json:
        found = {
            "quick": options.quick,
            "effort": asdict(benchmark.effort),
            "targets": [asdict(target) for target in benchmark.targets],
            "found": benchmark.raw,
        }
        options.json.write_text(json.dumps({**described, **found}, indent=1))
    verdicts = {target.verdict for target in benchmark.targets}
    return 1 if "missed" in verdicts else 3 if verdicts - {"met"} else 0


def _described(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "threads": THREADS,
        "machine": platform.processor() or platform.machine(),
        **setting,
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba")},
        "load average before": round(os.getloadavg()[0], 1),
    }


def _show(targets: list[Target]) -> None:
    if not targets:
        return
    print("\n## Targets\n")
    header("target", "promised", "found", "verdict")
    for target in targets:
        row(*vars(target).values())
