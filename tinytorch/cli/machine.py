"""``tinytorch machine``: the hardware of this machine and its measured ceilings."""

import argparse
from importlib import import_module

from tinytorch.cli.console import ExitCode, Output, Progress
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.ceilings import Ceilings, machine_ceilings, measuring_steps
from tinytorch.measure.environment import Environment, describe_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:N (default cpu)"
    )
    parser.add_argument(
        "--refresh", action="store_true", help="measure again instead of using cached results"
    )
    parser.add_argument(
        "--torch", action="store_true", help="measure PyTorch's matrix products too"
    )
    parser.add_argument(
        "--kernels",
        metavar="TARGET",
        help="instead, time the backends on each operation of a TinyTorch model",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.reporting.machine import machine_document

    if options.kernels:
        return _show_kernels(options, output)
    if options.torch:
        _import_torch()
    ceilings = _measure(options, output)
    environment = describe_environment()
    output.show(_payload(environment, ceilings), machine_document(environment, ceilings))
    return ExitCode.FINE


def _show_kernels(options: argparse.Namespace, output: Output) -> ExitCode:
    """Time the backends on each operation of a model, and show the fastest."""
    from tinytorch.core.module import Module
    from tinytorch.models.targets import load_workload
    from tinytorch.transforms.optimized_backend import OptimizedBackend

    backend = OptimizedBackend()
    if options.refresh:
        backend.forget()
    workload = load_workload(options.kernels)
    if not isinstance(workload.model, Module):
        raise SettingError(
            f"--kernels needs a TinyTorch model, {options.kernels} is a "
            f"{type(workload.model).__name__}; its operations do not run on TinyTorch's backends"
        )
    report = backend.tune(workload)
    output.result(report.to_dict(), report)
    return ExitCode.FINE


def _import_torch() -> None:
    try:
        import_module("tinytorch.measure.ceilings_torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPartError(
            "--torch needs PyTorch; install the extra: pip install '.[torch]'"
        ) from error


class _Announced:
    """Progress that announces the measurement before its first step."""

    def __init__(self, output: Output, progress: Progress) -> None:
        self._output, self._progress, self._is_announced = output, progress, False

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(steps)

    def describe(self, text: str) -> None:
        if not self._is_announced:
            self._output.say("Measuring the ceilings of this machine: about ten seconds.")
            self._is_announced = True
        self._progress.describe(text)


def _measure(options: argparse.Namespace, output: Output) -> Ceilings:
    with output.progress("machine", total=measuring_steps(options.device)) as progress:
        return machine_ceilings(
            options.device, refresh=options.refresh, progress=_Announced(output, progress)
        )


def _payload(environment: Environment, ceilings: Ceilings) -> dict[str, object]:
    dtypes = dict.fromkeys(rate.dtype for rate in ceilings.rates)
    return {
        "environment": environment.to_dict(),
        "ceilings": ceilings.to_dict(),
        "peak_flops": {dtype: ceilings.peak_flops(dtype) for dtype in dtypes},
        "bandwidth": {each.level: each.ceiling for each in ceilings.bandwidths},
        "ridge": {dtype: ceilings.ridge(dtype) for dtype in dtypes},
    }
