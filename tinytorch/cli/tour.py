"""``tinytorch tour``: for now, which version this is and where it lives."""

import argparse
from pathlib import Path

import tinytorch
from tinytorch.cli.console import Output
from tinytorch.cli.exit_codes import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the tour has no arguments of its own."""


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Report the version and the folder of the package."""
    folder = Path(tinytorch.__file__).parent
    output.say("The tour is not written yet; this only shows what is installed.")
    output.result(
        {"package_folder": folder}, f"TinyTorch {tinytorch.__version__}, installed in {folder}"
    )
    return ExitCode.FINE
