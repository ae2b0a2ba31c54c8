"""``tinytorch compete new``: create an entry from a template."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.competition.entry import Entry

TIERS = {"99": 0.99, "99.9": 0.999}
"""Tiers on the command line -> share of the reference's accuracy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to create")
    parser.add_argument(
        "--event",
        required=True,
        metavar="EVENT",
        help="mlp_sprint, cnn_marathon or transformer_decathlon",
    )
    parser.add_argument("--team", required=True, metavar="NAME", help="name on the leaderboard")
    parser.add_argument(
        "--division",
        default="closed",
        metavar="NAME",
        help="closed, open or learner (default closed)",
    )
    parser.add_argument(
        "--tier",
        type=tier,
        default=TIERS["99"],
        metavar="99|99.9",
        help="minimum accuracy, in percent of the reference's (default 99)",
    )
    parser.add_argument(
        "--code", action="store_true", help="use a template with model.py, which builds the model"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    entry = _written(options)
    files = sorted(each.name for each in options.folder.iterdir())
    techniques = [each.name for each in entry.techniques]
    payload = {"folder": options.folder, "files": files, "techniques": techniques}
    trust = " --trust" if options.code else ""
    told = [
        f"{options.folder}: {', '.join(files)}",
        f"techniques: {', '.join(techniques) or 'none (this is the reference)'}",
        f"next: tinytorch compete check {options.folder}{trust}",
    ]
    output.result({**payload, "entry": entry}, "\n".join(told))
    return ExitCode.FINE


def _written(options: argparse.Namespace) -> "Entry":
    from tinytorch.competition.new_entry import new_entry

    try:
        return new_entry(
            options.folder,
            event=options.event,
            team=options.team,
            division=options.division,
            tier=options.tier,
            example="code" if options.code else "techniques",
        )
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"{options.folder} cannot be written: {reason}") from error


def tier(text: str) -> float:
    """Parse a tier such as 99 or 99.9%."""
    known = TIERS.get(text.strip().removesuffix("%"))
    if known is None:
        raise argparse.ArgumentTypeError(f"no tier {text!r}; there are {' and '.join(TIERS)}")
    return known
