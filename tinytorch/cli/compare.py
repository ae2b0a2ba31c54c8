"""``tinytorch compare``: is the candidate faster than the baseline, and still as good?"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_html_option,
    add_markdown_option,
    check_html_path,
    check_markdown_path,
    confidence,
    margin,
    positive_count,
    positive_share,
    seconds,
    share,
    shown_or_markdown,
    variable,
    write_html,
    write_markdown,
)
from tinytorch.errors import SettingError, TargetError

if TYPE_CHECKING:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.measure.estimate import Estimate

__all__ = ["SIDES", "add_environments", "are_isolated", "as_side", "chosen_sides", "described"]


# ---------------------------------------------------------------- the two sides of a comparison as
# options of a command: targets, and the environments they run in
#
# A side is written as a dictionary: its target, and what was asked for of python, folder,
# variables.

SIDES = ("baseline", "candidate")


def add_environments(group: argparse._ArgumentGroup) -> None:
    """Add what the two sides may differ in beside their targets."""
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
            type=variable,
            metavar="K=V",
            help=f"environment variable of the {side}, repeatable (isolates)",
        )


def are_isolated(options: argparse.Namespace) -> bool:
    """Tell whether the sides run in processes of their own, as any environment needs it."""
    return options.isolate or any(_own_environment(options, side) for side in SIDES)


def chosen_sides(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Give what is run on each side, and refuse what is no target before anything starts."""
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
    """Give a side as the comparer takes it: a target, or one that runs in a fresh process."""
    if not are_isolated(options):
        return side["target"]
    from tinytorch.comparison.processes import Isolated

    limit = {} if options.timeout is None else {"timeout_s": options.timeout}
    return Isolated(**side, **limit)


def described(side: dict[str, Any]) -> str:
    """Write a side in a line."""
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


def _check_folder(folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise SettingError(f"there is no folder {folder} to run in")


def _check_target(side: dict[str, Any]) -> None:
    """Check as much of a target as can be seen from outside of its environment."""
    place, colon, _ = side["target"].rpartition(":")
    if not colon:
        from tinytorch.models.targets import load_workload

        load_workload(side["target"])
    elif place.endswith(".py") and not Path(side.get("folder", "."), place).is_file():
        raise TargetError(f"there is no file {place} in {Path(side.get('folder', '.')).resolve()}")


# ---------------------------------------------------------------- ``tinytorch compare``: is the
# candidate faster than the baseline, and still as good?

CODES = """\
exit codes:
  0  faster or same; with --expect, what was expected is shown
  1  slower; with --expect, the contrary of what was expected is shown
  3  inconclusive: not enough evidence, never to be read as passed; also when
     the accuracy is inconclusive
  4  no verdict, because nothing could be measured that can be trusted: a side
     raises, cannot be built, or a call did not end
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
    _add_deciding(parser.add_argument_group("deciding"))
    add_environments(parser.add_argument_group("environments"))
    keeping = parser.add_argument_group("keeping")
    keeping.add_argument("--save", action="store_true", help="keep the result as a record")
    keeping.add_argument(
        "--store",
        metavar="FILE",
        help="the file that keeps it (default: $TINYTORCH_RECORDS, or this project's)",
    )
    add_html_option(parser)
    add_markdown_option(keeping)
    checking = parser.add_argument_group("checking the comparer")
    checking.add_argument(
        "--selfcheck",
        action="store_true",
        help="compare one target (default mlp) with itself, again and again, and find out what "
        "this machine can resolve",
    )
    checking.add_argument(
        "--trials",
        type=positive_count,
        metavar="N",
        help=f"comparisons of the self-check (default {TRIALS})",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget",
        type=seconds,
        default=2.0,
        metavar="S",
        help="about the longest that timing takes, in seconds (default 2); at least six rounds are "
        "timed, however slow a call is",
    )
    group.add_argument(
        "--precision",
        type=positive_share,
        metavar="SHARE",
        help="go on until the interval reaches no further than this from the estimate",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
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
        "--timing",
        choices=("latency", "throughput"),
        default="latency",
        help="on a CUDA device, decide by single synchronised calls (latency, the default) or by "
        "sustained calls (throughput); on a processor both are the same",
    )
    group.add_argument(
        "--no-evidence",
        action="store_true",
        help="compare nothing but time: no outputs, accuracy, memory, size or single calls; the "
        "exit code is about time alone then",
    )


def _add_deciding(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--expect",
        choices=("faster", "same", "not-slower"),
        help="what counts as fine, see below (default: faster or same)",
    )
    group.add_argument(
        "--floor",
        type=share,
        metavar="SHARE",
        help="smaller differences do not count (default 0.5%%, or 1%% without building anew)",
    )
    group.add_argument(
        "--band",
        type=positive_share,
        default=0.01,
        metavar="SHARE",
        help="what lies within is the same (default 1%%)",
    )
    group.add_argument(
        "--confidence",
        type=confidence,
        default=0.95,
        metavar="SHARE",
        help="of the interval, over all looks together (default 95%%)",
    )
    group.add_argument(
        "--margin",
        type=margin,
        default=0.01,
        metavar="X",
        help="how much accuracy may be lost, in the unit of the scores (default 0.01, or 1%%)",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Compare, show, keep, and say by the exit code what was found."""
    if options.store is not None and not options.save:
        raise SettingError("--store says where to keep the result; add --save to keep it")
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
    return _self_check(options, output) if options.selfcheck else _compare(options, output)


def _compare(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.trials is not None:
        raise SettingError("--trials belongs to --selfcheck; a comparison stops by itself")
    if are_isolated(options) and options.cache == "cold":
        raise SettingError("--cache cold is for sides in one process; leave what isolates them out")
    settings = chosen_sides(options)
    from tinytorch.comparison.compare import compare
    from tinytorch.reporting.comparison import render_comparison

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
            "both sides are the same (A against A): any difference is one of noise or memory layout"
        )
    code = _exit_code(options.expect, comparison)
    record = _keep(options, output, comparison, settings) if options.save else None
    payload: dict[str, object] = dict(zip(SIDES, settings, strict=True))
    payload |= {"expect": options.expect, "exit_code": int(code), "record": record}
    about = [f"{side}: {described(each)}" for side, each in zip(SIDES, settings, strict=True)]
    shown = render_comparison(comparison, about=about)
    output.result(
        {**payload, "comparison": comparison.to_dict()},
        shown_or_markdown(options.markdown, comparison, shown, about=about),
    )
    write_markdown(options.markdown, comparison, output, about=about)
    write_html(options.html, comparison, output, is_opened=options.open, about=about)
    return code


def _self_check(options: argparse.Namespace, output: Output) -> ExitCode:
    if len(options.targets) > 1:
        raise SettingError(f"--selfcheck compares one target with itself, not {options.targets}")
    is_cold = options.cache != "warm"
    if are_isolated(options) or options.save or options.expect or is_cold:
        raise SettingError(
            "--selfcheck runs in this process, with warm caches, and is kept by itself; leave "
            "--isolate, the environments, --cache, --save and --expect out"
        )
    if options.html is not None or options.markdown is not None:
        name = "--html" if options.html is not None else "--markdown"
        raise SettingError(f"{name} shows one comparison, --selfcheck makes many; leave one out")
    from tinytorch.comparison.self_check import self_check
    from tinytorch.reporting.comparison import render_self_check

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
    if is_met is False:
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if is_met is None or quality_doubt(comparison) else ExitCode.FINE


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
    output.say(kept.note or f"kept as {kept.hash[:12]} in {kept.path}")
    return kept.hash
