"""``tinytorch advise``: which batch size or sequence length, from measurements."""

import argparse
import math

from tinytorch.cli.console import CODE_IF, ExitCode, Output
from tinytorch.cli.options import TARGET_FORMS, whole_numbers
from tinytorch.errors import SettingError

MEBIBYTE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, by what, and within which limits."""
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--batch", action="store_true", help="advise a batch size (the default)")
    by.add_argument("--sequence", action="store_true", help="advise a sequence length")
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--latency", type=float, metavar="MS", help="a call may take so many milliseconds"
    )
    limits.add_argument(
        "--memory",
        type=float,
        metavar="MB",
        help="a call may hold so many MB (2**20 bytes), parameters included",
    )
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument(
        "--sizes", metavar="N,N,...", help="the sizes to measure (default: 1, 2, 4, ...)"
    )
    measuring.add_argument(
        "--axis", type=int, metavar="N", help="the axis to change, if not the first or second"
    )
    measuring.add_argument(
        "--tolerance",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="how much less than the best throughput is good enough (default 10)",
    )
    measuring.add_argument(
        "--budget", type=float, default=30.0, metavar="S", help="seconds of measuring (default 30)"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Measure, recommend, show, and say whether a size keeps the limits."""
    sizes = whole_numbers(options.sizes)
    for name in ("latency", "memory", "tolerance", "budget"):
        _check_positive(name, getattr(options, name))
    # Only now: the parser and --help do without the frameworks.
    from tinytorch.reporting.document import document_of
    from tinytorch.tuning.sizes import advise_batch_size, advise_sequence_length

    advise = advise_sequence_length if options.sequence else advise_batch_size
    with output.progress(f"{options.target}: loading") as progress:
        advice = advise(
            options.target,
            sizes=sizes,
            latency_limit_s=None if options.latency is None else options.latency / 1e3,
            memory_limit_bytes=None if options.memory is None else int(options.memory * MEBIBYTE),
            budget_s=options.budget,
            tolerance=options.tolerance / 100,
            axis=options.axis,
            progress=progress,
        )
    output.show({"advice": advice.to_dict()}, document_of(advice))
    return CODE_IF[advice.meets_limits]


def _check_positive(name: str, value: float | None) -> None:
    """Say what is wrong in the words and units of the options."""
    most = 100.0 if name == "tolerance" else math.inf
    if value is not None and not 0 < value < most:
        limits = "between 0 and 100" if name == "tolerance" else "above 0"
        raise SettingError(f"--{name} {value:g}; give a number {limits}")
