"""``tinytorch profile``: where the time and the memory of a model go, and why."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import Output
from tinytorch.cli.exit_codes import ExitCode
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinytorch.workloads.profile import Profile

OPTIMIZERS = ("sgd", "adam", "adamw", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to profile, how long, and what to write."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="mlp, cnn, gpt, file.py:factory or package.module:factory; several are compared",
    )
    parser.add_argument("--training", action="store_true", help="profile a whole training step")
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adam",
        help="what updates the parameters in a training step (default adam)",
    )
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument(
        "--runs", type=int, metavar="N", help="time N unwatched and N watched calls"
    )
    measuring.add_argument(
        "--budget", type=float, default=3.0, metavar="S", help="seconds of timing (default 3)"
    )
    measuring.add_argument(
        "--no-ceilings",
        action="store_true",
        help="do not measure the machine; nothing is then known about bounds",
    )
    measuring.add_argument(
        "--counters",
        action="store_true",
        help="ask the processor's counters (cycles, cache misses), through the program perf",
    )
    showing = parser.add_argument_group("showing")
    showing.add_argument("--depth", type=int, metavar="N", help="show N levels of layers")
    showing.add_argument(
        "--expand", action="store_true", help="show repeated blocks one by one, not folded"
    )
    showing.add_argument(
        "--top", type=int, default=8, metavar="N", help="rows in the other tables (default 8)"
    )
    showing.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace")
    showing.add_argument("--speedscope", type=Path, metavar="FILE", help="write for speedscope.app")
    elsewhere = parser.add_argument_group("elsewhere")
    elsewhere.add_argument(
        "--on", metavar="DEVICE", help="estimate the time on another device, such as h100"
    )
    elsewhere.add_argument(
        "--price-per-hour", type=float, metavar="X", help="what an hour on that device costs"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Profile each target and show it; several are shown side by side."""
    _check(options)
    # Only now: the parser and --help do without the frameworks.
    from tinytorch.perf.profiling.model_profile import profile_workload
    from tinytorch.workloads.targets import load_workload

    workloads = [load_workload(target) for target in options.targets]
    profiles: list[Profile] = []
    try:
        with output.progress("profile", total=len(workloads)) as progress:
            for workload in workloads:
                profile = profile_workload(
                    workload,
                    training=options.training,
                    optimizer=None if options.optimizer == "none" else options.optimizer,
                    runs=options.runs,
                    budget_s=options.budget,
                    ceilings=not options.no_ceilings,
                    counters=options.counters,
                    progress=progress,
                )
                profiles.append(profile)
                progress.advance()
    finally:
        # What is finished is shown, also when a later target fails or somebody has enough.
        if profiles:
            _show(options, output, profiles)
    return ExitCode.FINE


def _show(options: argparse.Namespace, output: Output, profiles: "Sequence[Profile]") -> None:
    from rich.console import Group
    from rich.text import Text

    from tinytorch.perf.profiling.hardware import estimate_on
    from tinytorch.reporting.chrome_trace import chrome_trace
    from tinytorch.reporting.hardware import render_estimate
    from tinytorch.reporting.profile import render_profile, render_profiles
    from tinytorch.reporting.speedscope import speedscope

    estimates = [
        estimate_on(profile, options.on, price_per_hour=options.price_per_hour)
        for profile in (profiles if options.on else ())
    ]
    shown: list[RenderableType] = (
        [render_profiles(profiles)]
        if len(options.targets) > 1
        else [
            render_profile(p, depth=options.depth, top=options.top, expand=options.expand)
            for p in profiles
        ]
    )
    for profile, estimate in zip(profiles, estimates, strict=False):
        name = [Text(profile.name, style="bold")] if len(profiles) > 1 else []
        shown += [Text(""), *name, render_estimate(estimate)]
    payload: dict[str, object] = {"profiles": [profile.to_dict() for profile in profiles]}
    if estimates:
        payload["estimates"] = [estimate.to_dict() for estimate in estimates]
    output.result(payload, Group(*shown))
    _write(options.trace, lambda: chrome_trace(profiles[0]), output)
    _write(options.speedscope, lambda: speedscope(profiles[0]), output)


def _write(path: Path | None, make: Callable[[], dict[str, Any]], output: Output) -> None:
    if path is None:
        return
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(make(), allow_nan=False), "utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
    output.say(f"wrote {path}")


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is measured."""
    least = {"runs": 1, "depth": 0, "top": 1}
    for name, limit in least.items():
        value = getattr(options, name)
        if value is not None and value < limit:
            raise SettingError(f"--{name} {value}; it must be at least {limit}")
    if not options.budget > 0:
        raise SettingError(f"--budget {options.budget:g}; measuring needs some seconds")
    for name in ("trace", "speedscope"):
        path = getattr(options, name)
        if path is not None and len(options.targets) > 1:
            raise SettingError(f"--{name} holds one model; give one target, not {options.targets}")
        if path is not None:
            _check_writable(path)
    if options.on is not None:
        from tinytorch.perf.profiling.hardware import find_device

        find_device(options.on)
    elif options.price_per_hour is not None:
        raise SettingError("--price-per-hour is the price of a device; name it with --on")
    if options.price_per_hour is not None and not options.price_per_hour >= 0:
        raise SettingError(f"--price-per-hour {options.price_per_hour:g}; a price is not negative")


def _check_writable(path: Path) -> None:
    """Try whether a file can be made where `path` will be; minutes of measuring depend on it."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingError(f"{path} cannot be written: there is no folder {folder}")
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"{path} cannot be written: {folder}: {reason}") from error
