"""The entry point: find the command, run it, turn errors into a line and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NamedTuple, Protocol, cast

from tinytorch import __version__
from tinytorch.cli.console import ExitCode, Output, exit_code_for, throw_away_output
from tinytorch.cli.options import add_common_options
from tinytorch.errors import TinyTorchError, did_you_mean
from tinytorch.reading import as_plain


class Command(NamedTuple):
    """The module of a command, and its one-line summary."""

    module: str
    summary: str


COMMANDS = {
    "tour": Command("tinytorch.cli.tour", "demonstrate profiling and optimizing on small models"),
    "new": Command("tinytorch.cli.new", "write a workload file to fill in, which runs at once"),
    "machine": Command(
        "tinytorch.cli.machine", "measure peak FLOP/s and bandwidth of this machine"
    ),
    "profile": Command("tinytorch.cli.profile", "show where the time and memory of a model go"),
    "predict": Command(
        "tinytorch.cli.predict", "measure small sizes and extrapolate to a large one"
    ),
    "advise": Command("tinytorch.cli.advise", "recommend a batch size or a sequence length"),
    "optimize": Command(
        "tinytorch.cli.optimize", "try optimizations and recommend those that measurably help"
    ),
    "export": Command(
        "tinytorch.cli.export", "write a model for ONNX Runtime, OpenVINO or AOTInductor"
    ),
    "compare": Command("tinytorch.cli.compare", "compare the speed and accuracy of two models"),
    "bench": Command("tinytorch.cli.bench", "run a benchmark suite, each entry in a fresh process"),
    "sweep": Command(
        "tinytorch.cli.sweep", "run the trials of a suite here or on the machines of a cluster"
    ),
    "gate": Command("tinytorch.cli.gate", "fail on a performance or accuracy regression"),
    "history": Command("tinytorch.cli.history", "list records, show trends and change points"),
    "monitor": Command("tinytorch.cli.monitor", "show what a running service does"),
    "compete": Command("tinytorch.cli.compete", "enter, judge and rank competition entries"),
    "learn": Command("tinytorch.cli.learn", "build the tools yourself in labs, with checks"),
    "report": Command("tinytorch.cli.report", "show a stored result as text, Markdown or HTML"),
}


class CommandModule(Protocol):
    """The interface of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace, output: Output) -> ExitCode: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if argv is None and any(":" in each for each in arguments):
        hide_secrets_of_process(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal or file that cannot show a letter shows a question mark instead of failing.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        sys.stdout.flush()  # A closed pipe shows here, not while the interpreter shuts down.
    except BrokenPipeError:
        return _after_closed_pipe()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return ExitCode.INTERRUPTED
    except TinyTorchError as error:
        return _after_error(error)
    except Exception:
        traceback.print_exc()
        return ExitCode.CRASHED
    return code


def hide_secrets_of_process(arguments: Sequence[str]) -> None:
    """Hide passwords of addresses among the arguments from those who list processes."""
    from tinytorch.records.location import address_of, is_address, overwrite_arguments

    words = [word.partition("=")[2] if word.startswith("--") else word for word in arguments]
    overwrite_arguments([s for word in words if is_address(word) for s in address_of(word).secrets])


def build_parser(requested: str | None = None) -> argparse.ArgumentParser:
    """Build the parser with every command, but with the arguments of the requested one only.

    The modules of the other commands are not imported.
    """
    parser = argparse.ArgumentParser(
        prog="tinytorch",
        description="Profile, optimize and compare machine-learning models.",
        epilog="`tinytorch COMMAND --help` shows the options of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=_as_sentence(summary), allow_abbrev=False
        )
        if name == requested:
            add_common_options(command)
            _load(name).add_arguments(command)
    return parser


def _run(arguments: list[str]) -> int:
    # Options of the program itself take no value, so the first word is the command.
    requested = next((word for word in arguments if not word.startswith("-")), None)
    try:
        parser = build_parser(requested)
        if requested is not None and requested not in COMMANDS:
            parser.error(_unknown_command(requested))
        options = parser.parse_args(arguments)
    except SystemExit as leaving:  # argparse has printed help, the version or an error.
        return leaving.code if isinstance(leaving.code, int) else ExitCode.USAGE
    if options.command is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    output = Output(
        options.command, as_json=options.json, quiet=options.quiet, verbose=options.verbose
    )
    code = _load(options.command).run(options, output)
    return ExitCode.INVALID if output.faults and code == ExitCode.FINE else code


def _load(name: str) -> CommandModule:
    return cast(CommandModule, import_module(COMMANDS[name].module))


def _as_sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _unknown_command(word: str) -> str:
    return f"no command {word!r}; {did_you_mean(word, COMMANDS)}"


def _after_error(error: TinyTorchError) -> ExitCode:
    if os.environ.get("TINYTORCH_DEBUG") == "1":
        traceback.print_exception(error)
    in_one_line = as_plain(" ".join(str(error).split()))
    sys.stderr.write(f"tinytorch: error: {in_one_line}\n")
    return exit_code_for(error)


def _after_closed_pipe() -> ExitCode:
    throw_away_output()
    return ExitCode.PIPE_CLOSED
