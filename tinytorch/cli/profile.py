"""``tinytorch profile``: where the time and memory of a model go."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    TARGET_FORMS,
    add_html_option,
    add_markdown_option,
    check_reports,
    check_writable,
    show_result,
    whole_numbers,
    write_file,
    write_html,
    write_markdown,
)
from tinytorch.errors import SettingError, TinyTorchError

if TYPE_CHECKING:
    from tinytorch.models.workload import Workload
    from tinytorch.profiling.generation_speed import GenerationSpeed
    from tinytorch.profiling.profile import Profile

OPTIMIZERS = ("sgd", "adam", "adamw", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help=f"{TARGET_FORMS}; several are shown side by side",
    )
    parser.add_argument("--training", action="store_true", help="profile a whole training step")
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adam",
        help="optimizer of the training step (default adam)",
    )
    _add_measuring(parser.add_argument_group("measuring"))
    _add_showing(parser.add_argument_group("output"))
    add_html_option(parser)
    _add_elsewhere(parser.add_argument_group("estimate for another device"))


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--runs", type=int, metavar="N", help="time N calls, and N more with layer timing"
    )
    group.add_argument(
        "--budget", type=float, default=3.0, metavar="S", help="time budget in seconds (default 3)"
    )
    group.add_argument(
        "--batches",
        default="1,4,16",
        metavar="N,N",
        help="batch sizes of a target that generates (default 1,4,16)",
    )
    group.add_argument(
        "--no-ceilings",
        action="store_true",
        help="do not measure the machine's ceilings; omits the roofline",
    )
    group.add_argument(
        "--counters",
        action="store_true",
        help="read hardware counters (cycles, cache misses) with perf",
    )


def _add_showing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--depth", type=int, metavar="N", help="show N levels of layers")
    group.add_argument("--expand", action="store_true", help="show repeated blocks individually")
    group.add_argument("--top", type=int, metavar="N", help="rows in the other tables (default 8)")
    group.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace")
    group.add_argument(
        "--speedscope", type=Path, metavar="FILE", help="write a profile for speedscope.app"
    )
    add_markdown_option(group)


def _add_elsewhere(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--on", metavar="DEVICE", help="estimate the time on this device, such as h100"
    )
    group.add_argument(
        "--price-per-hour", type=float, metavar="X", help="price of an hour on that device"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check(options, output)
    # Imported here: the parser and --help do not need the frameworks.
    from tinytorch.models.targets import load_workload
    from tinytorch.profiling.model_profile import profile_workload

    with output.waiting(f"loading {', '.join(options.targets)}"):
        workloads = [load_workload(target) for target in options.targets]
    profiles: list[Profile] = []
    speeds: list[tuple[GenerationSpeed, ...]] = []
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
                speeds.append(_generation(options, workload, output))
                progress.advance()
    finally:
        # Finished profiles are shown, also when a later target fails or after Ctrl-C.
        if profiles:
            _show(options, output, profiles, speeds)
    return ExitCode.FINE


def _generation(
    options: argparse.Namespace, workload: "Workload", output: Output
) -> "tuple[GenerationSpeed, ...]":
    """Return the speed of generation, of a target whose call generates.

    The profile is shown also where that cannot be measured, as of a text of one token.
    """
    if workload.generating is None or options.training:
        return ()
    from tinytorch.profiling.generation_speed import measure_generation

    batches = whole_numbers(options.batches, "--batches") or ()
    settings = {"batches": batches, "budget_s": options.budget, "seed": options.seed}
    try:
        return measure_generation(workload, **settings)
    except TinyTorchError as error:
        output.say(f"speed of generation is not measured: {error}")
        return ()


def _show(
    options: argparse.Namespace,
    output: Output,
    profiles: "Sequence[Profile]",
    speeds: "Sequence[tuple[GenerationSpeed, ...]]",
) -> None:
    from tinytorch.profiling.hardware import estimate_on
    from tinytorch.reporting.profile import TOP, profile_document, profiles_document
    from tinytorch.reporting.profile_export import chrome_trace, speedscope
    from tinytorch.tuning.advise import advise

    advice = [advise(profile) for profile in profiles]
    estimates = [
        estimate_on(profile, options.on, price_per_hour=options.price_per_hour)
        for profile in (profiles if options.on else ())
    ]
    payload: dict[str, object] = {
        "profiles": [profile.to_dict() for profile in profiles],
        "advice": [[each.to_dict() for each in found] for found in advice],
    }
    if any(speeds):
        payload["generation"] = [[each.to_dict() for each in found] for found in speeds]
    if estimates:
        payload["estimates"] = [estimate.to_dict() for estimate in estimates]
    top = options.top or TOP
    if options.depth is not None or options.top or options.expand:
        output = replace(output, verbose=True)  # these are about the tables that brevity omits
    about = {
        "top": top,
        "depth": options.depth,
        "advice": advice[0][:top],
        "estimate": estimates[0] if estimates else None,
        "generation": speeds[0] if speeds else (),
    }
    document = (
        profiles_document(profiles, estimates=estimates)
        if len(options.targets) > 1
        else profile_document(profiles[0], expand=options.expand, **about)
    )
    show_result(options, output, payload, profiles[0], document=document, **about)
    write_markdown(options.markdown, profiles[0], output, **about)
    _write(options.trace, lambda: chrome_trace(profiles[0]), output)
    _write(options.speedscope, lambda: speedscope(profiles[0]), output)
    about = {name: about[name] for name in ("estimate", "generation")} | {"advice": advice[0]}
    write_html(options.html, profiles[0], output, is_opened=options.open, **about)


def _write(path: Path | None, make: Callable[[], dict[str, Any]], output: Output) -> None:
    if path is not None:
        write_file(path, json.dumps(make(), allow_nan=False), output)


def _check(options: argparse.Namespace, output: Output) -> None:
    """Raise for invalid options before anything is measured."""
    least = {"runs": 1, "depth": 0, "top": 1}
    for name, limit in least.items():
        value = getattr(options, name)
        if value is not None and value < limit:
            raise SettingError(f"--{name} {value}; it must be at least {limit}")
    whole_numbers(options.batches, "--batches")
    if not options.budget > 0:
        raise SettingError(f"--budget {options.budget:g} is not above 0")
    for name in ("trace", "speedscope", "html", "markdown"):
        path = getattr(options, name)
        if path is not None and len(options.targets) > 1:
            raise SettingError(f"--{name} needs a single target, got {options.targets}")
        if path is not None and name in ("trace", "speedscope"):
            check_writable(path)
    check_reports(options, output)
    if options.on is not None:
        from tinytorch.profiling.hardware import find_device

        find_device(options.on)
    elif options.price_per_hour is not None:
        raise SettingError("--price-per-hour needs --on")
    if options.price_per_hour is not None and not options.price_per_hour >= 0:
        raise SettingError(f"--price-per-hour {options.price_per_hour:g} is negative")
