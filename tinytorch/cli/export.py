"""``tinytorch export``: write a model for another engine, checked, usable without TinyTorch."""

import argparse
from pathlib import Path

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import TARGET_FORMS

FORMATS = ("onnx", "openvino", "aoti")
EPILOG = """\
exit codes:
  0  written, and its outputs in a fresh process are the model's
  2  wrong usage, or the engine is not installed
  4  the model cannot be exported (which operation and where), or the exported
     one does not give its outputs; nothing is written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to export, to what and where."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    parser.add_argument(
        "--to",
        choices=FORMATS,
        default="onnx",
        help="onnx (for ONNX Runtime and others), openvino, or aoti (AOTInductor, PyTorch models "
        "alone); default onnx",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write (default: NAME-FORMAT)"
    )
    parser.add_argument(
        "--optimized",
        type=Path,
        metavar="PATH",
        help="export what `tinytorch optimize TARGET --save PATH` wrote, not the model as it is",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.tuning.export import export

    with output.progress(f"exporting to {options.to}", total=None):
        found = export(
            options.target, to=options.to, output=options.output, optimized=options.optimized
        )
    output.result({"exported": found.to_dict()}, str(found))
    return ExitCode.FINE
