"""``tinytorch compare``: is the candidate faster than the baseline, and still as good?"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import Output
from tinytorch.cli.exit_codes import ExitCode
from tinytorch.errors import SettingError, TargetError

if TYPE_CHECKING:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.comparison.sequential import TimeRatio

SIDES = ("baseline", "candidate")
CODES = """\
exit codes:
  0  faster or same; with --expect, what was expected is shown
  1  slower; with --expect, the contrary of what was expected is shown
  3  not shown: not enough evidence, never to be read as passed; also when
     there is an accuracy, but none that is shown to be kept
  4  the measurement is invalid, for example because a call did not end
  5  less accurate, whatever the speed; also when the candidate cannot be
     evaluated, or its outputs are broken: another number or shape, or not
     finite where the baseline's are

what --expect means:
  faster      the candidate is faster; the same speed is a failure
  same        neither faster nor slower; a gain is a failure too
  not-slower  at most --band slower; it stops as soon as that is known
"""
TRIALS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to compare, where, how well, and what to keep."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = CODES
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="baseline and candidate: mlp, cnn, gpt, file.py:factory or package.module:factory; "
        "one is enough where the sides differ in their environment",
    )
    _add_measuring(parser.add_argument_group("measuring"))
    _add_environments(parser.add_argument_group("environments"))
    keeping = parser.add_argument_group("keeping")
    keeping.add_argument("--save", action="store_true", help="keep the result as a record")
    keeping.add_argument(
        "--store",
        metavar="FILE",
        help="the file that keeps it (default: $TINYTORCH_RECORDS, or this project's)",
    )
    checking = parser.add_argument_group("checking the comparer")
    checking.add_argument(
        "--selfcheck",
        action="store_true",
        help="compare one target (default mlp) with itself, again and again, and find out what "
        "this machine can resolve",
    )
    checking.add_argument(
        "--trials",
        type=_positive_count,
        metavar="N",
        help=f"comparisons of the self-check (default {TRIALS})",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget", type=_seconds, default=2.0, metavar="S", help="seconds of timing (default 2)"
    )
    group.add_argument(
        "--floor",
        type=_share,
        metavar="SHARE",
        help="smaller differences do not count (default 0.5%%, or 1%% without building anew)",
    )
    group.add_argument(
        "--band",
        type=_positive_share,
        default=0.01,
        metavar="SHARE",
        help="what lies within is the same (default 1%%)",
    )
    group.add_argument(
        "--confidence",
        type=_confidence,
        default=0.95,
        metavar="SHARE",
        help="of the interval, over all looks together (default 95%%)",
    )
    group.add_argument(
        "--precision",
        type=_positive_share,
        metavar="SHARE",
        help="go on until the interval reaches no further than this from the estimate",
    )
    group.add_argument(
        "--margin",
        type=_margin,
        default=0.01,
        metavar="X",
        help="how much accuracy may be lost, in the unit of the scores (default 0.01, or 1%%)",
    )
    group.add_argument(
        "--no-evidence",
        action="store_true",
        help="compare nothing but time: no outputs, accuracy, memory, size or single calls; the "
        "exit code is about time alone then",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="give up on a call, or on building a side, that takes longer",
    )
    group.add_argument(
        "--cache",
        choices=("warm", "cold"),
        default="warm",
        help="what calls find in the caches: what those before left (warm, the default), or "
        "nothing of theirs (cold)",
    )
    group.add_argument(
        "--expect",
        choices=("faster", "same", "not-slower"),
        help="what counts as fine, see below (default: faster or same)",
    )


def _add_environments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--isolate", action="store_true", help="run each side in fresh processes of its own"
    )
    for side in SIDES:
        group.add_argument(
            f"--{side}-python", metavar="PROGRAM", help=f"interpreter of the {side} (isolates)"
        )
        group.add_argument(
            f"--{side}-folder", metavar="DIR", help=f"where the {side} runs and imports (isolates)"
        )
        group.add_argument(
            f"--{side}-env",
            action="append",
            default=[],
            type=_variable,
            metavar="K=V",
            help=f"environment variable of the {side}, repeatable (isolates)",
        )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Compare, show, keep, and say by the exit code what was found."""
    if options.store is not None and not options.save:
        raise SettingError("--store says where to keep the result; add --save to keep it")
    return _self_check(options, output) if options.selfcheck else _compare(options, output)


def _compare(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.trials is not None:
        raise SettingError("--trials belongs to --selfcheck; a comparison stops by itself")
    targets = _two_targets(options)
    for side in SIDES:
        _check_folder(getattr(options, f"{side}_folder"))
    is_isolated = options.isolate or any(_own_environment(options, side) for side in SIDES)
    if is_isolated and options.cache == "cold":
        raise SettingError("--cache cold is for sides in one process; leave what isolates them out")
    settings = _side_settings(options, targets, is_isolated=is_isolated)
    from tinytorch.comparison.compare import compare
    from tinytorch.reporting.comparison import render_comparison

    with output.progress("compare") as progress:
        comparison = compare(
            *(_as_side(options, each, is_isolated) for each in settings),
            budget_s=options.budget,
            floor=options.floor,
            band=options.band,
            confidence=options.confidence,
            precision=options.precision,
            margin=options.margin,
            evidence=not options.no_evidence,
            timeout_s=options.timeout,
            cache=options.cache,
            is_known=_stopping_rule(options),
            seed=options.seed,
            progress=progress,
        )
    if settings[0] == settings[1]:
        comparison = comparison.with_notes(
            "both sides are the same (A against A): any difference is one of noise or memory layout"
        )
    code = _exit_code(options.expect, comparison)
    record = _keep(options, output, comparison, settings, is_isolated) if options.save else None
    payload: dict[str, object] = dict(zip(SIDES, settings, strict=True))
    payload |= {"expect": options.expect, "exit_code": int(code), "record": record}
    about = [f"{side}: {_described(each)}" for side, each in zip(SIDES, settings, strict=True)]
    output.result(
        {**payload, "comparison": comparison.to_dict()}, render_comparison(comparison, about=about)
    )
    return code


def _self_check(options: argparse.Namespace, output: Output) -> ExitCode:
    if len(options.targets) > 1:
        raise SettingError(f"--selfcheck compares one target with itself, not {options.targets}")
    given = [side for side in SIDES if _own_environment(options, side)]
    is_cold = options.cache != "warm"
    if options.isolate or given or options.save or options.expect or is_cold:
        raise SettingError(
            "--selfcheck runs in this process, with warm caches, and is kept by itself; leave "
            "--isolate, the environments, --cache, --save and --expect out"
        )
    from tinytorch.comparison.self_check import self_check
    from tinytorch.reporting.self_check import render_self_check

    trials = options.trials or TRIALS
    with output.progress("selfcheck", total=trials) as progress:
        check = self_check(
            options.targets[0] if options.targets else None,
            trials=trials,
            budget_s=options.budget,
            seed=options.seed,
            progress=progress,
        )
    output.result({"selfcheck": check.to_dict()}, render_self_check(check))
    return ExitCode.FINE


# ---------------------------------------------------------------- what is compared


def _two_targets(options: argparse.Namespace) -> tuple[str, str]:
    targets = options.targets
    if len(targets) == 2:
        return targets[0], targets[1]
    if len(targets) == 1 and any(_own_environment(options, side) for side in SIDES):
        return targets[0], targets[0]
    if len(targets) == 1:
        raise SettingError(
            f"one target, {targets[0]}; give two, or say how the sides differ, for example with "
            "--baseline-folder"
        )
    raise SettingError(f"{len(targets)} targets; give two: the baseline and the candidate")


def _own_environment(options: argparse.Namespace, side: str) -> dict[str, Any]:
    """Give what was asked for on one side only; nothing when it is nothing."""
    asked = {
        "python": getattr(options, f"{side}_python"),
        "folder": getattr(options, f"{side}_folder"),
        "variables": dict(getattr(options, f"{side}_env")),
    }
    return {name: value for name, value in asked.items() if value}


def _side_settings(
    options: argparse.Namespace, targets: tuple[str, str], *, is_isolated: bool
) -> list[dict[str, Any]]:
    """Give what is run on each side, and refuse what is no target before anything starts."""
    sides = [
        {"target": target, **_own_environment(options, side)}
        for side, target in zip(SIDES, targets, strict=True)
    ]
    for side in sides if is_isolated else ():
        _check_target(side)
    return sides


def _check_folder(folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise SettingError(f"there is no folder {folder} to run in")


def _check_target(side: dict[str, Any]) -> None:
    """Check as much of a target as can be seen from outside of its environment."""
    place, colon, _ = side["target"].rpartition(":")
    if not colon:
        from tinytorch.workloads.targets import load_workload

        load_workload(side["target"])
    elif place.endswith(".py") and not Path(side.get("folder", "."), place).is_file():
        raise TargetError(f"there is no file {place} in {Path(side.get('folder', '.')).resolve()}")


def _as_side(options: argparse.Namespace, side: dict[str, Any], is_isolated: bool) -> object:
    if not is_isolated:
        return side["target"]
    from tinytorch.comparison.processes import Isolated

    limit = {} if options.timeout is None else {"timeout_s": options.timeout}
    return Isolated(**side, **limit)


def _described(side: dict[str, Any]) -> str:
    variables = [f"{name}={value}" for name, value in side.get("variables", {}).items()]
    parts = [side[name] for name in ("target", "python", "folder") if name in side]
    return ", ".join(map(str, [*parts, *variables]))


# ---------------------------------------------------------------- when to stop, what it means


def _stopping_rule(options: argparse.Namespace) -> "Callable[[TimeRatio], bool] | None":
    from tinytorch.comparison.compare import FLOOR_OF_FINISHED
    from tinytorch.comparison.expectations import NOT_SLOWER, is_met

    if options.expect != NOT_SLOWER:
        return None
    # Whether the sides can be built anew is not known yet; the larger floor stops no earlier.
    floor = FLOOR_OF_FINISHED if options.floor is None else options.floor
    return lambda ratio: is_met(NOT_SLOWER, ratio, floor=floor, band=options.band) is not None


def _exit_code(expected: str | None, comparison: "Comparison") -> ExitCode:
    from tinytorch.comparison.comparison import NOT_SHOWN, SLOWER
    from tinytorch.comparison.expectations import is_met_by
    from tinytorch.comparison.quality import quality_doubt, quality_loss

    if quality_loss(comparison):
        return ExitCode.ACCURACY
    if expected is None:
        is_met = {SLOWER: False, NOT_SHOWN: None}.get(comparison.verdict, True)
    else:
        is_met = is_met_by(expected, comparison)
    if is_met is False:
        return ExitCode.FAILED
    return ExitCode.NOT_SHOWN if is_met is None or quality_doubt(comparison) else ExitCode.FINE


def _keep(
    options: argparse.Namespace,
    output: Output,
    comparison: "Comparison",
    settings: list[dict[str, Any]],
    is_isolated: bool,
) -> str:
    from tinytorch.records.comparison_record import comparison_record
    from tinytorch.records.store import keep

    sides = dict(zip(SIDES, settings, strict=True))
    kept = keep(
        comparison_record(
            comparison,
            name=f"{_described(settings[1])} against {_described(settings[0])}",
            settings={**sides, "isolated": is_isolated},
            folder=Path.cwd(),
        ),
        options.store,
    )
    output.say(kept.note or f"kept as {kept.hash[:12]} in {kept.path}")
    return kept.hash


# ---------------------------------------------------------------- numbers


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


def _share(text: str) -> float:
    from tinytorch.records.settings import parse_share

    try:
        return parse_share(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive_share(text: str) -> float:
    if not _share(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves nothing; give a share such as 1%")
    return _share(text)


def _confidence(text: str) -> float:
    if _share(text) < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no confidence; give one such as 95%")
    return _share(text)


def _margin(text: str) -> float:
    """Read a margin: a share such as 1%, or a number in the unit of the scores."""
    if text.strip().endswith("%"):
        return _share(text)
    if _number(text) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}; a margin is zero or more")
    return _number(text)


def _seconds(text: str) -> float:
    if text.strip().endswith("%") or not _number(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds such as 2")
    return _number(text)


def _positive_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 on, not {text!r}")
    return int(text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} sets nothing; write NAME=VALUE")
    return name, value
