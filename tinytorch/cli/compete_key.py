"""``tinytorch compete key``: create a key for signing records."""

import argparse
from pathlib import Path

from tinytorch.cli.console import ExitCode, Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="file for the secret key; the public key goes to FILE.pub",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.signing import new_key

    public_key = new_key(options.file).public
    told = f"secret key: {options.file} (do not share it)\npublic key: {public_key}"
    output.result({"file": options.file, "public_key": public_key}, told)
    return ExitCode.FINE
