"""The two sides of a comparison as options of a command: targets, and the environments they run in.

A side is written as a dictionary: its target, and what was asked for of python, folder, variables.
"""

import argparse
from pathlib import Path
from typing import Any

from tinytorch.cli.option_values import variable
from tinytorch.errors import SettingError, TargetError

__all__ = [
    "SIDES",
    "add_environments",
    "are_isolated",
    "as_side",
    "chosen_sides",
    "described",
]

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
        from tinytorch.workloads.targets import load_workload

        load_workload(side["target"])
    elif place.endswith(".py") and not Path(side.get("folder", "."), place).is_file():
        raise TargetError(f"there is no file {place} in {Path(side.get('folder', '.')).resolve()}")
