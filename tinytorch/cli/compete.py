"""``tinytorch compete``: create, judge, submit and rank competition entries."""

import argparse
from dataclasses import replace
from importlib import import_module
from typing import cast

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.main import Command, CommandModule
from tinytorch.cli.options import add_common_options

EPILOG = """\
example:
  tinytorch compete new mine --event transformer_decathlon --team "The Writers"
  tinytorch compete check mine
  tinytorch compete run mine
  tinytorch compete submit mine --to submissions
  tinytorch compete board submissions --html board.html

exit codes:
  0  success; for `run`: the entry is valid, accurate and faster
  1  a rule is broken, or a check failed
  2  wrong usage
  3  inconclusive: valid, but not established to be faster than the reference;
     or the accuracy of the tier is inconclusive, which does not count as
     valid; for `verify`: the signature of a record was not checked
  4  the measurement is invalid, or a record was changed or cannot be read
  5  the accuracy is below that of the tier

docs/competition.md has the rules on one page. The competition is not affiliated
with MLCommons.
"""

ACTIONS = {
    "new": Command("tinytorch.cli.compete_new", "create an entry from a template"),
    "check": Command(
        "tinytorch.cli.compete_check", "check an entry against the rules, without timing it"
    ),
    "run": Command(
        "tinytorch.cli.compete_run", "time an entry against the reference, and store the run"
    ),
    "submit": Command(
        "tinytorch.cli.compete_submit", "copy an entry and all of its runs to a submissions folder"
    ),
    "board": Command("tinytorch.cli.compete_board", "show the leaderboard of a submissions folder"),
    "verify": Command(
        "tinytorch.cli.compete_verify",
        "find records that were changed; with --rerun, judge the entry again",
    ),
    "round": Command(
        "tinytorch.cli.compete_round",
        "create a round with a secret seed, and reveal the seed at its end",
    ),
    "key": Command("tinytorch.cli.compete_key", "create a key for signing records"),
    "rules": Command("tinytorch.cli.compete_rules", "show the rules, or one of them"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    for name, (_, summary) in ACTIONS.items():
        action = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        add_common_options(action, is_inner=True)
        _load(name).add_arguments(action)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    named = replace(output, command=f"compete {options.action}")
    return _load(options.action).run(options, named)


def _load(name: str) -> CommandModule:
    return cast(CommandModule, import_module(ACTIONS[name].module))
