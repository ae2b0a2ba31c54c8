"""``tinytorch compare``: is the candidate faster than the baseline, and as accurate?"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import CODE_IF, ExitCode, Output
from tinytorch.cli.options import (
    TARGET_FORMS,
    add_report_options,
    add_store_option,
    check_reports,
    confidence,
    margin,
    positive_count,
    positive_share,
    seconds,
    share,
    show_result,
    variable,
    write_reports,
)
from tinytorch.errors import SettingError, TargetError

if TYPE_CHECKING:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.measure.estimate import Estimate

# ---------------------------------------------------------------- the two sides: targets and
# environments
#
# A side is a dictionary: its target and, where given, python, folder and variables.

SIDES = ("baseline", "candidate")


def add_environments(group: argparse._ArgumentGroup) -> None:
    """Add the options for the environments of the two sides."""
    group.add_argument(
        "--isolate", action="store_true", help="run each side in its own fresh processes"
    )
    for side in SIDES:
        group.add_argument(
            f"--{side}-python",
            metavar="PROGRAM",
            help=f"interpreter of the {side} (implies --isolate)",
        )
        group.add_argument(
            f"--{side}-folder",
            metavar="DIR",
            help=f"working folder of the {side} (implies --isolate)",
        )
        group.add_argument(
            f"--{side}-env",
            action="append",
            default=[],
            type=variable,
            metavar="K=V",
            help=f"environment variable of the {side}, repeatable (implies --isolate)",
        )


def are_isolated(options: argparse.Namespace) -> bool:
    """Return whether the sides run in their own processes, which any environment requires."""
    return options.isolate or any(_own_environment(options, side) for side in SIDES)


def chosen_sides(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the two sides; raise for an invalid target or folder before anything is measured."""
    sides = [
        {"target": target, **_own_environment(options, side)}
        for side, target in zip(SIDES, _two_targets(options), strict=True)
    ]
    for side in sides:
        _check_folder(side.get("folder"))
    for side in sides if are_isolated(options) else ():
        _check_target(side)
    return sides


def as_side(options: argparse.Namespace, side: dict[str, Any]) -> object:
    """Return a side as an argument of :func:`~tinytorch.comparison.compare.compare`."""
    if not are_isolated(options):
        return side["target"]
    from tinytorch.comparison.processes import Isolated

    limit = {} if options.timeout is None else {"timeout_s": options.timeout}
    return Isolated(**side, **limit)


def described(side: dict[str, Any]) -> str:
    """Describe a side in one line."""
    variables = [f"{name}={value}" for name, value in side.get("variables", {}).items()]
    parts = [side[name] for name in ("target", "python", "folder") if name in side]
    return ", ".join(map(str, [*parts, *variables]))


def _two_targets(options: argparse.Namespace) -> tuple[str, str]:
    targets = options.targets
    if len(targets) == 2:
        return targets[0], targets[1]
    if len(targets) == 1 and any(_own_environment(options, side) for side in SIDES):
        return targets[0], targets[0]
    if len(targets) == 1:
        raise SettingError(
            f"one target, {targets[0]}; pass two, or an option that makes the sides differ, such "
            "as --baseline-folder"
        )
    raise SettingError(f"{len(targets)} targets; pass two: the baseline and the candidate")


def _own_environment(options: argparse.Namespace, side: str) -> dict[str, Any]:
    """Return the environment options of one side."""
    asked = {
        "python": getattr(options, f"{side}_python"),
        "folder": getattr(options, f"{side}_folder"),
        "variables": dict(getattr(options, f"{side}_env")),
    }
    return {name: value for name, value in asked.items() if value}


def _check_folder(folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise SettingError(f"there is no folder {folder} to run in")


def _check_target(side: dict[str, Any]) -> None:
    """Check a target as far as possible from outside of its environment."""
    place, colon, _ = side["target"].rpartition(":")
    if not colon:
        from tinytorch.models.targets import load_workload

        load_workload(side["target"])
    elif place.endswith(".py") and not Path(side.get("folder", "."), place).is_file():
        raise TargetError(f"there is no file {place} in {Path(side.get('folder', '.')).resolve()}")


# ---------------------------------------------------------------- the command

CODES = """\
exit codes:
  0  faster or same; with --expect, as expected
  1  slower; with --expect, contrary to what was expected
  3  inconclusive: not enough evidence, never to be read as passed; also when
     the accuracy is inconclusive
  4  no valid measurement: a side raises, cannot be built, or timed out
  5  accuracy is worse, whatever the speed; also when the candidate cannot be
     evaluated, or its outputs differ in number or shape, or are not finite
     where the baseline's are

values of --expect:
  faster      the candidate is faster; the same speed is a failure
  same        neither faster nor slower; a speedup is a failure too
  not-slower  at most --band slower; stops as soon as that is decided
"""
TRIALS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = CODES
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help=f"baseline and candidate: {TARGET_FORMS}; one is enough if the sides differ in their "
        "environment",
    )
    _add_measuring(parser.add_argument_group("measuring"))
    _add_deciding(parser.add_argument_group("decision"))
    add_environments(parser.add_argument_group("environments"))
    keeping = parser.add_argument_group("output")
    keeping.add_argument("--save", action="store_true", help="store the result as a record")
    add_store_option(keeping)
    add_report_options(parser, keeping)
    checking = parser.add_argument_group("self-check")
    checking.add_argument(
        "--selfcheck",
        action="store_true",
        help="compare one target (default mlp) with itself repeatedly (A/A test), to measure the "
        "false-positive rate and the resolution of this machine",
    )
    checking.add_argument(
        "--trials",
        type=positive_count,
        metavar="N",
        help=f"number of A/A comparisons (default {TRIALS})",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget",
        type=seconds,
        default=2.0,
        metavar="S",
        help="time budget in seconds (default 2); at least six rounds are timed regardless",
    )
    group.add_argument(
        "--precision",
        type=positive_share,
        metavar="SHARE",
        help="measure until the half-width of the interval is below this share of the estimate",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="limit in seconds for each call, and for building a side",
    )
    group.add_argument(
        "--cache",
        choices=("warm", "cold"),
        default="warm",
        help="time with warm processor caches (default), or evict them before each call (cold)",
    )
    group.add_argument(
        "--timing",
        choices=("latency", "throughput"),
        default="latency",
        help="on a CUDA device, time single synchronised calls (latency, default) or sustained "
        "calls (throughput); on a CPU both are the same",
    )
    group.add_argument(
        "--no-evidence",
        action="store_true",
        help="compare time only: no outputs, accuracy, memory, size or single calls; the exit code "
        "then depends on time alone",
    )


def _add_deciding(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--expect",
        choices=("faster", "same", "not-slower"),
        help="required result, see below (default: faster or same)",
    )
    group.add_argument(
        "--floor",
        type=share,
        metavar="SHARE",
        help="minimum effect: smaller differences are not reported as faster or slower (default "
        "0.5%%, or 1%% for models that cannot be rebuilt)",
    )
    group.add_argument(
        "--band",
        type=positive_share,
        default=0.01,
        metavar="SHARE",
        help="equivalence band: within it, the speed is the same (default 1%%)",
    )
    group.add_argument(
        "--confidence",
        type=confidence,
        default=0.95,
        metavar="SHARE",
        help="confidence level of the interval, over all interim analyses (default 95%%)",
    )
    group.add_argument(
        "--margin",
        type=margin,
        default=0.01,
        metavar="X",
        help="allowed accuracy drop, in the unit of the scores (default 0.01, or 1%%)",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.store is not None and not options.save:
        raise SettingError("--store needs --save")
    check_reports(options, output)
    return _self_check(options, output) if options.selfcheck else _compare(options, output)


def _compare(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.trials is not None:
        raise SettingError("--trials needs --selfcheck")
    if are_isolated(options) and options.cache == "cold":
        raise SettingError("--cache cold cannot be combined with isolated sides")
    settings = chosen_sides(options)
    from tinytorch.comparison.compare import compare

    with output.progress("compare") as progress:
        comparison = compare(
            *(as_side(options, each) for each in settings),
            budget_s=options.budget,
            floor=options.floor,
            band=options.band,
            confidence=options.confidence,
            precision=options.precision,
            margin=options.margin,
            evidence=not options.no_evidence,
            timeout_s=options.timeout,
            cache=options.cache,
            timing=options.timing,
            is_known=_stopping_rule(options),
            seed=options.seed,
            progress=progress,
        )
    if settings[0] == settings[1]:
        comparison = comparison.with_notes(
            "both sides are the same (A/A): any difference is noise or memory layout"
        )
    code = _exit_code(options.expect, comparison)
    record = _keep(options, output, comparison, settings) if options.save else None
    payload: dict[str, object] = dict(zip(SIDES, settings, strict=True))
    payload |= {"expect": options.expect, "exit_code": int(code), "record": record}
    about = [f"{side}: {described(each)}" for side, each in zip(SIDES, settings, strict=True)]
    payload["comparison"] = comparison.to_dict()
    is_stored = record is not None
    show_result(options, output, payload, comparison, is_stored=is_stored, about=about)
    write_reports(options, output, comparison, about=about)
    return code


def _self_check(options: argparse.Namespace, output: Output) -> ExitCode:
    if len(options.targets) > 1:
        raise SettingError(f"--selfcheck compares one target with itself, not {options.targets}")
    is_cold = options.cache != "warm"
    if are_isolated(options) or options.save or options.expect or is_cold:
        raise SettingError(
            "--selfcheck runs in this process, with warm caches, and stores its result itself; it "
            "cannot be combined with --isolate, environments, --cache, --save and --expect"
        )
    if options.html is not None or options.markdown is not None:
        name = "--html" if options.html is not None else "--markdown"
        raise SettingError(f"{name} cannot be combined with --selfcheck")
    from tinytorch.comparison.self_check import self_check
    from tinytorch.reporting.comparison import self_check_document

    trials = options.trials or TRIALS
    with output.progress("selfcheck", total=trials) as progress:
        check = self_check(
            options.targets[0] if options.targets else None,
            trials=trials,
            budget_s=options.budget,
            seed=options.seed,
            progress=progress,
        )
    output.show({"selfcheck": check.to_dict()}, self_check_document(check))
    return ExitCode.FINE


# ---------------------------------------------------------------- when to stop, what it means


def _stopping_rule(options: argparse.Namespace) -> "Callable[[Estimate], bool] | None":
    from tinytorch.comparison.compare import FLOOR_OF_FINISHED
    from tinytorch.comparison.comparison import NOT_SLOWER, is_met

    if options.expect != NOT_SLOWER:
        return None
    # Whether the sides can be built anew is not known yet; the larger floor stops no earlier.
    floor = FLOOR_OF_FINISHED if options.floor is None else options.floor
    return lambda ratio: is_met(NOT_SLOWER, ratio, floor=floor, band=options.band) is not None


def _exit_code(expected: str | None, comparison: "Comparison") -> ExitCode:
    from tinytorch.comparison.comparison import (
        is_met_by,
        quality_doubt,
        quality_loss,
    )
    from tinytorch.measure.estimate import INCONCLUSIVE, SLOWER

    if quality_loss(comparison):
        return ExitCode.ACCURACY
    if expected is None:
        is_met = {SLOWER: False, INCONCLUSIVE: None}.get(comparison.verdict, True)
    else:
        is_met = is_met_by(expected, comparison)
    return CODE_IF[None if is_met and quality_doubt(comparison) else is_met]


def _keep(
    options: argparse.Namespace,
    output: Output,
    comparison: "Comparison",
    settings: list[dict[str, Any]],
) -> str:
    from tinytorch.records.record import comparison_record
    from tinytorch.records.store import keep

    sides = dict(zip(SIDES, settings, strict=True))
    kept = keep(
        comparison_record(
            comparison,
            name=f"{described(settings[1])} against {described(settings[0])}",
            settings={**sides, "isolated": are_isolated(options)},
            folder=Path.cwd(),
        ),
        options.store,
    )
    output.say(kept.note or f"stored as {kept.hash[:12]} in {kept.path}")
    return kept.hash
