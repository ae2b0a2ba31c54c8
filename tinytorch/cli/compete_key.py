"""``tinytorch compete key``: a key with which records are signed."""

import argparse
from pathlib import Path

from tinytorch.cli.console import ExitCode, Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the key goes."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="where the secret key goes; FILE.pub is beside it"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Make a key, and show the half of it that others may see."""
    from tinytorch.competition.signing import new_key

    public_key = new_key(options.file).public
    told = f"{options.file}: the secret key, for nobody but you\npublic key: {public_key}"
    output.result({"file": options.file, "public_key": public_key}, told)
    return ExitCode.FINE
