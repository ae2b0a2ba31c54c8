"""Run a benchmark section by section: its options, its targets, and how it ends.

Import this before NumPy, as interleaving.py, which sets the threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

from interleaving import THREADS

# isort: split
from generation_tables import header, row
from quantization_tables import Target

from tinytorch.core.dispatch import set_backend
from tinytorch.measure.environment import usable_cores
from tinytorch.measure.timing import time_limit

BUSY = 0.25
"""A load average per core from which on other programs take part in what is timed."""


class HasTargets(Protocol):
    """A benchmark; `effort` is a dataclass, and `raw` has the values that were measured."""

    effort: Any
    targets: list[Target]
    raw: dict[str, Any]


AnyBenchmark = TypeVar("AnyBenchmark", bound=HasTargets)
Setting = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]


def run_sections(
    sections: Mapping[str, Callable[[AnyBenchmark], None]],
    make: Callable[..., AnyBenchmark],
    *,
    about: str,
    quick: tuple[str, str],
    setting: Setting | None = None,
    devices: Mapping[str, Sequence[str]] | None = None,
    backend: str | None = "numba",
) -> int:
    """Run the sections that the command line names, and give the exit code.

    The first line of a section's docstring is its heading. `make` gives the benchmark and is told
    whether it has to be quick; `quick` says in the help, and then above the tables, what that
    means. Where there is a choice of `devices`, each with the sections that it runs unless told
    otherwise, `make` is told the device, too, and so is `setting`, if that is a function. A section
    that fails or takes too long does not keep the others from running: where it leaves a device
    that is of no use, they run in another process. Raw values are written after each section.

    The code is 4 if a section fails, 1 if a target is missed, and 3 if one is inconclusive.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sections)
    parser.add_argument("--quick", action="store_true", help=f"less of everything; {quick[0]}")
    parser.add_argument("--json", type=Path, help="write raw values here")
    parser.add_argument("--limit", type=float, metavar="S", help="give a section up after this")
    if devices:
        parser.add_argument("--device", choices=devices, default=next(iter(devices)))
    options = parser.parse_args()
    place = (options.device,) if devices else ()
    names = options.only or (devices[options.device] if devices else list(sections))
    described = _described(setting(*place) if callable(setting) else setting or {})
    print(", ".join(f"{name} {value}" for name, value in described.items()))
    if described["load average before"] > BUSY * usable_cores():
        print("\n**The machine is busy**: believe no time.")
    if options.quick:
        print(f"\n**Quick**: {quick[1]}")
    if backend:
        set_backend(backend)
    benchmark = make(options.quick, *place)
    failed: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        heading = (sections[name].__doc__ or name).splitlines()[0].rstrip(".")
        print(f"\n## {heading}\n", flush=True)
        try:
            with time_limit(options.limit, f"the section {name}"):
                sections[name](benchmark)
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"\n**Failed**: {failed[name]}", flush=True)
        if options.json:
            kept = {"quick": options.quick, "failed": failed, **_kept(benchmark)}
            options.json.write_text(json.dumps({**described, **kept}, indent=1))
        if failed and not _is_usable(*place):
            _run_elsewhere(names[number:], options)
            break
    _show(benchmark.targets)
    verdicts = {target.verdict for target in benchmark.targets}
    return 4 if failed else 1 if "missed" in verdicts else 3 if verdicts - {"met"} else 0


def _is_usable(device: str = "cpu") -> bool:
    """Tell whether a device still computes: after some errors it does not, in this process."""
    if device != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _run_elsewhere(names: Sequence[str], options: argparse.Namespace) -> None:
    if not names:
        return
    print("\n**The device is of no use after that**: what is left runs in another process.")
    command = [sys.executable, sys.argv[0], "--device", options.device, "--only", *names]
    command += ["--quick"] if options.quick else []
    command += ["--limit", str(options.limit)] if options.limit else []
    command += ["--json", str(options.json.with_suffix(".rest.json"))] if options.json else []
    subprocess.run(command, check=False)


def _kept(benchmark: HasTargets) -> dict[str, Any]:
    return {
        "effort": asdict(benchmark.effort),
        "targets": [asdict(target) for target in benchmark.targets],
        "found": benchmark.raw,
    }


def _described(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "threads": THREADS,
        "machine": platform.processor() or platform.machine(),
        **setting,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "numba")},
        "load average before": round(os.getloadavg()[0], 1),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _show(targets: list[Target]) -> None:
    if not targets:
        return
    print("\n## Targets\n")
    header("target", "promised", "found", "verdict")
    for target in targets:
        row(*vars(target).values())
