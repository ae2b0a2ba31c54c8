"""Run a benchmark of PyTorch models section by section, on a CPU or on a CUDA device.

Import this before NumPy and torch, as sections.py, whose interleaving.py sets the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from sections import AnyBenchmark, run_sections

# isort: split
import torch
from interleaving import THREADS
from torch_transform_cases import empty_compiler_caches

from tinytorch.measure.environment import cpu_model


def run_torch_sections(
    sections: Mapping[str, Callable[[AnyBenchmark], None]],
    make: Callable[[bool, str], AnyBenchmark],
    *,
    about: str,
    quick: str,
    devices: Mapping[str, Sequence[str]],
) -> int:
    """Run the sections that the command line names, with nothing compiled yet; see `run_sections`.

    `make` is told whether to be quick, and the device; `quick` is said above the tables.
    """
    torch.set_num_threads(THREADS)
    with empty_compiler_caches():
        return run_sections(
            sections,
            make,
            about=about,
            quick=("tiny models", quick),
            setting=setting,
            devices=devices,
            backend=None,
        )


def setting(device: str) -> dict[str, Any]:
    """Say where this runs, and with what."""
    versions = {name: version(name) for name in ("torch", "transformers")}
    if device == "cpu":
        return {"processor": cpu_model(), **versions}
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device; use --device cpu, here best with --quick")
    from tinytorch.measure.gpu import DeviceWatch

    watch = DeviceWatch("cuda:0")
    watch.look()
    seen = watch.to_dict()
    return {
        "device": torch.cuda.get_device_name(),
        "CUDA": torch.version.cuda,
        **versions,
        "clock, MHz": seen.get("sm_clock_mhz"),
        "of at most": seen.get("most_sm_clock_mhz"),
    }
