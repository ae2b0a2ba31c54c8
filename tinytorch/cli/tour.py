"""``tinytorch tour``: train the models of the zoo for a moment and show them working."""

import argparse
import dataclasses
import sys

from tinytorch.cli.console import Output
from tinytorch.cli.exit_codes import ExitCode
from tinytorch.core.memory import keep_freed_memory
from tinytorch.workloads.tour import STEPS, Tour, take_tour


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the tour has no arguments of its own."""


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Take the tour and show it."""
    from tinytorch.reporting.tour import render_tour

    keep_freed_memory()
    output.say("Training three small models from scratch: about a minute.")
    with output.progress("tour", total=sum(STEPS.values())) as progress:
        shown, doing = 0, ""

        def watch(text: str, done: int, total: int) -> None:
            nonlocal shown, doing
            if text != doing and not sys.stderr.isatty():  # where no bar is drawn
                output.say(f"{text} ...")
            progress.describe(text)
            progress.advance(done - shown)
            shown, doing = done, text

        tour = take_tour(options.seed, watch)
    output.result(_payload(tour), render_tour(tour))
    return ExitCode.FINE if tour.works else ExitCode.FAILED


def _payload(tour: Tour) -> dict[str, object]:
    """Give the tour for machines: everything but the pictures."""
    digits = [
        {"label": d.label, "predicted": d.predicted, "probability": d.probability}
        for d in tour.digits
    ]
    fields = {field.name: getattr(tour, field.name) for field in dataclasses.fields(tour)}
    return {**fields, "digits": digits, "works": tour.works}
