"""``tinytorch compete rules``: the rules, events and divisions."""

import argparse
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.errors import SettingError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinytorch.competition.rules import Rule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", nargs="?", metavar="ID", help="one rule, such as A2")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.events import DIVISIONS, EVENTS, TIERS
    from tinytorch.competition.rules import RULES

    rules = [_find(options.rule)] if options.rule else list(RULES.values())
    payload: dict[str, object] = {"rules": rules}
    if not options.rule:
        payload |= {"events": list(EVENTS.values()), "divisions": DIVISIONS, "tiers": TIERS}
    output.result(payload, _rendered(rules, has_events=not options.rule))
    return ExitCode.FINE


def _find(name: str) -> "Rule":
    from tinytorch.competition.rules import RULES

    if name.upper() in RULES:
        return RULES[name.upper()]
    raise SettingError(f"no rule {name!r}; {did_you_mean(name.upper(), RULES)}")


def _rendered(rules: "list[Rule]", *, has_events: bool) -> "RenderableType":
    from tinytorch.competition.events import EVENTS, TIERS
    from tinytorch.reporting.competition import rules_document
    from tinytorch.reporting.terminal import render

    if not has_events:
        return render(rules_document(rules))
    return render(rules_document(rules, events=EVENTS, tiers=TIERS))
