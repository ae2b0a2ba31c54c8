"""``tinytorch compete``: enter a competition, judge an entry, keep every run, make the board."""

import argparse
from dataclasses import replace
from importlib import import_module
from typing import Protocol, cast

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import add_common_options

EPILOG = """\
from nothing to a board:
  tinytorch compete new mine --event transformer_decathlon --team "The Writers"
  tinytorch compete check mine
  tinytorch compete run mine
  tinytorch compete submit mine --to submissions
  tinytorch compete board submissions --html board.html

exit codes:
  0  fine; for `run`: the entry is valid, accurate and shown to be faster
  1  a rule is broken, or a check did not hold
  2  wrong usage
  3  valid, but inconclusive, or not faster than the reference; or the accuracy of
     the tier is inconclusive, which does not count as valid; for `verify`:
     the signature of a record was not checked
  4  the measurement is invalid, or a record was changed or cannot be read
  5  the accuracy of the tier is lost

docs/competition.md has the rules on one page. The competition is not affiliated
with MLCommons.
"""

# What can be done -> what it does, in one line.
ACTIONS = {
    "new": "write an entry to start from",
    "check": "look for broken rules, offline and before anything is timed",
    "run": "let the judge time an entry against the reference; every run is kept",
    "submit": "copy an entry with all of its runs into a folder of submissions",
    "board": "show standings, innovation and records of a folder of submissions",
    "verify": "find records that were changed; with --rerun, judge the entry again",
    "round": "make a round with a secret seed, and reveal the seed at its end",
    "key": "make a key with which records are signed",
    "rules": "show the rules, or one of them",
}


MODULES = {
    "new": "tinytorch.cli.compete_new",
    "check": "tinytorch.cli.compete_check",
    "run": "tinytorch.cli.compete_run",
    "submit": "tinytorch.cli.compete_submit",
    "board": "tinytorch.cli.compete_board",
    "verify": "tinytorch.cli.compete_verify",
    "round": "tinytorch.cli.compete_round",
    "key": "tinytorch.cli.compete_key",
    "rules": "tinytorch.cli.compete_rules",
}


class ActionModule(Protocol):
    """What the module of an action offers, as that of a command does."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this action."""

    def run(self, options: argparse.Namespace, output: Output) -> ExitCode:
        """Carry it out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each action; all of them are light to import."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    for name, summary in ACTIONS.items():
        action = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        add_common_options(action, is_inner=True)
        _load(name).add_arguments(action)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Carry out the action that was asked for."""
    named = replace(output, command=f"compete {options.action}")
    return _load(options.action).run(options, named)


def _load(name: str) -> ActionModule:
    return cast(ActionModule, import_module(MODULES[name]))
