"""``tinytorch predict``: measure a model at small sizes, and predict what a large one takes."""

import argparse

from tinytorch.cli.console import CODE_IF, ExitCode, Output
from tinytorch.cli.options import TARGET_FORMS, whole_numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, which axis, and which size to predict."""
    parser.add_argument("target", metavar="TARGET", help=TARGET_FORMS)
    parser.add_argument(
        "--axis",
        default="batch",
        metavar="AXIS",
        help="batch (axis 0, the default), sequence (axis 1) or the number of an axis",
    )
    parser.add_argument("--at", type=int, required=True, metavar="N", help="the size to predict")
    parser.add_argument(
        "--sizes",
        metavar="N,N,...",
        help="the sizes to measure (default: some from a sixteenth to half of the predicted one)",
    )
    parser.add_argument(
        "--check", action="store_true", help="measure the predicted size too, and compare"
    )
    parser.add_argument(
        "--budget", type=float, default=5.0, metavar="S", help="seconds of timing (default 5)"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Measure, predict, show, and say whether the check holds."""
    axis = int(options.axis) if options.axis.isdecimal() else options.axis
    sizes = whole_numbers(options.sizes)
    # Only now: the parser and --help do without the frameworks.
    from tinytorch.models.targets import load_workload
    from tinytorch.profiling.size_scaling import measure_scaling
    from tinytorch.reporting.document import document_of

    workload = load_workload(options.target)
    with output.progress(f"{workload.name}: measuring") as progress:
        scaling = measure_scaling(
            workload,
            at=options.at,
            axis=axis,
            sizes=sizes,
            check=options.check,
            budget_s=options.budget,
            progress=progress,
        )
    output.show({"scaling": scaling.to_dict()}, document_of(scaling))
    return CODE_IF[scaling.holds if options.check else True]
