"""``tinytorch new``: write a workload file to fill in, which runs at once."""

import argparse
from pathlib import Path

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import check_writable, write_file
from tinytorch.errors import SettingError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write, such as yours.py")
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="SOURCE",
        help="what the model comes from: hf:PATH (the folder of a transformers model) or "
        "package.module:Class (default: a small example)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    file = options.file
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise SettingError(f"{file} is no name of a Python module; pass one such as yours.py")
    check_writable(file)
    if file.exists() and not options.force:
        raise SettingError(f"{file} exists; pass another name, or --force to overwrite it")
    from tinytorch.models.new_workload import FACTORY, new_workload

    write_file(file, new_workload(file, options.source), output)
    target = f"{file}:{FACTORY}"
    told = [f"next: tinytorch profile {target}", f"      tinytorch optimize {target}"]
    output.result({"file": file, "target": target, "source": options.source}, "\n".join(told))
    return ExitCode.FINE
