"""Quantize models: what they weigh, how good they are, and how fast.

    python benchmarks/quantization.py [--only SECTION ...] [--quick] [--json FILE]

Bytes are those that are really held and of files that were really written and read back; accuracy
is on held-out examples, paired with the float model's; times come from the comparer, after the
outputs were looked at. Linear layers have a benchmark of their own, int8.py. Models compute on the
compiled backend, with as many threads as the process may run on, or TINYTORCH_BENCHMARK_THREADS.
Needs numba. Ends with 1 if a target is missed, and with 3 if one is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sections import run_sections

# isort: split
import numpy as np
from generation_sides import Shape
from generation_tables import header, row
from quantization_cases import (
    GPT2_SMALL,
    MANY_IMAGES,
    MODES,
    many_digits,
    models,
    quantized,
    signal_to_noise,
)
from quantization_sizes import measure_sizes
from quantization_tables import (
    Target,
    accuracy_target,
    at_least,
    below,
    cells_of,
    kept,
    perplexity_cells,
    perplexity_target,
    size_cells,
    speedup_cell,
)

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.kernels.numba.int8_simd import HAS_VNNI
from tinytorch.core.layers import Linear
from tinytorch.core.optimizers import Adam
from tinytorch.formats.affine import Scheme, quantize_array
from tinytorch.formats.ranges import METHODS
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import (
    HELD_OUT_IMAGES,
    digit_data,
    is_correct,
    load_zoo,
    text_data,
)
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.fine_tuning import LEARNING_RATE, fine_tune
from tinytorch.transforms.quantize.layers import QuantizedLinear

LEAST_SHRINKAGE, LEAST_SHARE = 3.9, 0.98
IMAGE_MARGIN, FINE_MARGIN = 0.005, 0.001
PERPLEXITY_LIMIT = 1.01
WEIGHT_DEVIATION, LARGEST_RMS = 0.02, 2e-4

HURTS = Quantize("weight_only", bits=4, group_size=128)
"""Four bits, with one scale for all inputs of most layers of `gpt`."""


@dataclass(frozen=True)
class Effort:
    """How large everything is, and how long to measure."""

    gpt2: Shape = GPT2_SMALL
    layers: tuple[tuple[int, int], ...] = (
        (512, 10), (512, 512), (513, 1000), (768, 3072), (1024, 1024), (2048, 2048), (4096, 4096),
    )  # fmt: skip
    has_many_images: bool = True
    budget_s: float = 4.0
    large_budget_s: float = 30.0
    training_steps: int = 300


QUICK = Effort(
    gpt2=(5000, 256, 2, 4, 1024),
    layers=((512, 10), (512, 512), (513, 1000)),
    has_many_images=False,
    budget_s=0.2,
    large_budget_s=0.5,
    training_steps=10,
)


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    effort: Effort
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------ sizes

    def sizes(self) -> None:
        """Bytes held and files written."""
        print(
            "The ideal has a byte for each quantized weight, or half of one, four for each scale,"
            "\nand the rest as floats; `share` is how much of its shrinkage is reached. `Traced` is"
            "\nwhat a new copy really took from Python's allocators. Files are read back first.\n"
        )
        header("model", "mode", "float", "held", "times smaller", "share", "traced", "float file",
               "file", "times smaller", "share", "plain checkpoint")  # fmt: skip
        for name, load in models(self.effort.gpt2).items():
            workload = load()
            found = {}
            for mode, transform in MODES.items():
                found[mode] = measure_sizes(workload, transform)
                row(name, mode, *size_cells(found[mode]))
            self.raw[f"sizes, {name}"] = {mode: each.to_dict() for mode, each in found.items()}
            for what in ("share_held", "share_of_file"):
                worst = min(found, key=lambda mode: getattr(found[mode], what))
                share = getattr(found[worst], what)
                claim = f"{name}, {what.replace('_', ' ')}: least of all modes ({worst})"
                self.targets.append(at_least(claim, LEAST_SHARE, share))
        self._layer_sizes()

    def _layer_sizes(self) -> None:
        print()
        header("linear layer", "float", *(f"{mode}: times smaller" for mode in MODES))
        worst: dict[str, tuple[float, str]] = {}
        for inputs, outputs in self.effort.layers:
            linear, name = Linear(inputs, outputs, rng=0), f"{inputs} to {outputs}"
            used = {
                mode: _quantized_layer(linear, transform).memory_usage()
                for mode, transform in MODES.items()
                if transform.bits == 8 or inputs % 8 == 0  # else there are no groups
            }
            self.raw[f"sizes, Linear {name}"] = used
            ratios = {mode: each["compression_ratio"] for mode, each in used.items()}
            worst |= {
                mode: min(worst.get(mode, (math.inf, "")), (ratio, name))
                for mode, ratio in ratios.items()
            }
            original = next(iter(used.values()))["original_bytes"]
            cells = (f"{ratios[mode]:.3f}" if mode in ratios else "no group" for mode in MODES)
            row(name, f"{original:,}", *cells)
        for mode, (ratio, name) in worst.items():
            claim = f"linear layers, {mode}, times smaller: least of all ({name})"
            self.targets.append(at_least(claim, LEAST_SHRINKAGE, ratio))

    # ------------------------------------------------------------ accuracy

    def accuracy(self) -> None:
        """How good quantized models are on held-out examples."""
        static = {f"static 8, {ranges}": Quantize("static", ranges=ranges) for ranges in METHODS}
        others = {mode: each for mode, each in MODES.items() if each.mode != "static"}
        print(
            f"The share of right answers on {HELD_OUT_IMAGES:,} held-out images; in full also on "
            f"{MANY_IMAGES:,} others.\nBounds are one-sided, at 95%. Not worse means that at most "
            f"{IMAGE_MARGIN:.1%} of the images are lost,\nor {FINE_MARGIN:.1%} of the others.\n"
        )
        columns = ("float", "quantized", "difference", "bounds", "lost", "gained", "verdict")
        others_too = self.effort.has_many_images
        header("model", "mode", *columns, *columns * others_too)
        for name in ("mlp", "cnn"):
            self._images(load_zoo(name), {**static, **others})
        self._text()

    def _images(self, workload: Workload, transforms: Mapping[str, Quantize]) -> None:
        is_flat = workload.name == "mlp"
        tests = {IMAGE_MARGIN: digit_data(held_out=True, flat=is_flat)}
        if self.effort.has_many_images:
            tests[FINE_MARGIN] = many_digits(flat=is_flat)
        exact = {margin: is_correct(workload.model, images) for margin, images in tests.items()}
        for mode, transform in transforms.items():
            model = quantized(workload, transform)
            found = {
                margin: compare_accuracy(exact[margin], is_correct(model, images), margin=margin)
                for margin, images in tests.items()
            }
            for each in found.values():
                self.raw[f"accuracy, {workload.name}, {mode}, {each.n} images"] = kept(each)
            row(workload.name, mode, *(cell for each in found.values() for cell in cells_of(each)))
            if transform.mode == "static":
                claim = f"{workload.name}, {mode}: accuracy on {HELD_OUT_IMAGES:,} images"
                self.targets.append(accuracy_target(claim, found[IMAGE_MARGIN]))

    def _text(self) -> None:
        workload = load_zoo("gpt")
        print(
            "\nText: the perplexity of the quantized model over that of the float model, with the"
            "\nbounds that the log-likelihoods of windows of 64 characters give.\n"
        )
        header("mode", "n", "float", "quantized", "ratio", "bounds")
        exact = workload.evaluate(workload.model)
        for mode, transform in MODES.items():
            scores = workload.evaluate(quantized(workload, transform))
            found = compare_accuracy(exact, scores, margin=math.log(PERPLEXITY_LIMIT))
            self.raw[f"accuracy, gpt, {mode}"] = kept(found)
            row(mode, *perplexity_cells(found))
            if mode == "weight-only 8":
                self.targets.append(perplexity_target(f"gpt, {mode}", found, PERPLEXITY_LIMIT))

    # ------------------------------------------------------------ round trip

    def roundtrip(self) -> None:
        """What a round trip does to weights."""
        print(f"Root mean square of the error, for weights of deviation {WEIGHT_DEVIATION}.\n")
        schemes = {
            "INT8 per output": Scheme(8, symmetric=True, axis=1),
            "INT8 per matrix": Scheme(8, symmetric=True),
            "INT4, groups of 32": Scheme(4, symmetric=True, axis=1, group_size=32),
            "INT4, groups of 128": Scheme(4, symmetric=True, axis=1, group_size=128),
        }
        header("inputs", *schemes)
        worst = 0.0
        for inputs in (512, 1024, 4096, 16384):
            errors = {name: _errors(inputs, scheme) for name, scheme in schemes.items()}
            self.raw[f"round trip, {inputs} inputs"] = errors
            row(f"{inputs:,}", *(f"{max(each):.2e}" for each in errors.values()))
            worst = max(worst, *errors["INT8 per output"])
        self.targets.append(below("round trip, INT8 per output: largest RMS", LARGEST_RMS, worst))

    # ------------------------------------------------------------ speed

    def speed(self) -> None:
        """How many times as fast as floats whole models are."""
        print("Above 1 the quantized model is faster; 95% intervals.\n")
        header("model", "float", *MODES, "signal to noise")
        for name, load in models(self.effort.gpt2).items():
            workload = load()
            if workload.evaluate is None:  # the large one
                self._speed_of(f"{name}, 64 tokens", workload, self.effort.large_budget_s)
            else:
                many = replace(workload, inputs=workload.calibration[0])
                self._speed_of(f"{name}, batch 1", workload, self.effort.budget_s)
                self._speed_of(f"{name}, batch 32", many, self.effort.budget_s)

    def _speed_of(self, name: str, workload: Workload, budget_s: float) -> None:
        found: dict[str, Comparison] = {}
        quality = []
        for mode, transform in MODES.items():
            model = quantized(workload, transform)
            quality.append(signal_to_noise(workload, model))  # this compiles it, too
            found[mode] = compare(
                replace(workload, evaluate=None),
                replace(workload, model=model, evaluate=None),
                budget_s=budget_s,
                precision=0.05,
                evidence=False,
                names=("float", mode),
            )
            self.raw[f"speed, {name}, {mode}"] = found[mode].to_dict()
        baseline = next(iter(found.values())).baseline.median
        decibels = " / ".join(f"{each:.0f}" for each in quality)
        row(name, f"{baseline * 1e3:.3f} ms", *map(speedup_cell, found.values()), f"{decibels} dB")

    # ------------------------------------------------------------ fine-tuning

    def fine_tuning(self) -> None:
        """What fine-tuning gives back where rounding hurts."""
        steps = self.effort.training_steps
        print(
            f"`gpt` in {HURTS.bits} bits with a scale for {HURTS.group_size} inputs; {steps} steps "
            "of training on 32 windows each.\nThe float model had the same training, to tell what "
            "comes from training alone. Perplexity over\nthat of the float model as it was.\n"
        )
        workload = load_zoo("gpt")
        header("model", "n", "float", "found", "ratio", "bounds")
        tuned_floats = load_zoo("gpt").model
        tuned_floats.train()
        tuned_floats.fit(
            _training_batches(steps), optimizer=Adam(tuned_floats.parameters(), lr=LEARNING_RATE)
        )
        candidates = {
            "quantized": quantized(workload, HURTS),
            "fine-tuned, then quantized": quantized(
                replace(workload, model=tuned_floats.eval()), HURTS
            ),
            "fine-tuned with rounding": fine_tune(workload, _training_batches(steps), HURTS),
            "float, fine-tuned": tuned_floats,
        }
        exact = workload.evaluate(workload.model)
        for name, model in candidates.items():
            found = compare_accuracy(exact, workload.evaluate(model))
            self.raw[f"fine-tuning, {name}"] = kept(found)
            row(name, *perplexity_cells(found))


SECTIONS = {
    "sizes": Benchmark.sizes,
    "accuracy": Benchmark.accuracy,
    "roundtrip": Benchmark.roundtrip,
    "speed": Benchmark.speed,
    "fine_tuning": Benchmark.fine_tuning,
}

# ---------------------------------------------------------------- measuring


def _quantized_layer(linear: Linear, transform: Quantize) -> QuantizedLinear:
    layer = QuantizedLinear(linear, transform.mode, bits=transform.bits)
    return layer.set_input_range(-4, 4) if transform.mode == "static" else layer


def _errors(inputs: int, scheme: Scheme) -> list[float]:
    """Give the error of some matrices, with as many outputs as make them all the same size."""
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        matrix = WEIGHT_DEVIATION * rng.standard_normal((inputs, 2**19 // inputs), np.float32)
        fit = "mse" if scheme.bits == 4 else "range"
        back = quantize_array(matrix, scheme, fit=fit).dequantize()
        errors.append(float(np.sqrt(np.square(back - matrix, dtype=np.float64).mean())))
    return errors


def _training_batches(steps: int) -> DataLoader:
    inputs, targets = (tensor.data for tensor in text_data(held_out=False).tensors)
    chosen = np.random.default_rng(0).choice(len(inputs), 32 * steps, replace=False)
    windows = TensorDataset(inputs[chosen], targets[chosen])
    return DataLoader(windows, batch_size=32, shuffle=True, seed=0)


def main() -> int:
    return run_sections(
        SECTIONS,
        lambda is_quick: Benchmark(QUICK if is_quick else Effort()),
        about=__doc__,
        quick=("judges no time", "smaller and shorter; times and fine-tuning mean nothing."),
        setting={"VNNI": "yes" if HAS_VNNI else "no"},
    )


if __name__ == "__main__":
    raise SystemExit(main())
