"""Compress models: what they weigh, how good they are, and how fast.

    python benchmarks/compression.py [--only SECTION ...] [--quick] [--json FILE]

Bytes are those that are really held and of files that were really written and read back; accuracy
is on held-out examples, paired with that of the float model as it ships; times come from the
comparer, after the accuracy was looked at. Models compute on the compiled backend, on one thread
unless TINYTORCH_BENCHMARK_THREADS says otherwise. Needs numba. Ends with 1 if a target is missed,
and with 3 if one is inconclusive.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

os.environ.setdefault("TINYTORCH_BENCHMARK_THREADS", "1")
from sections import run_sections

# isort: split
import numpy as np
from compression_cases import (
    HALVED,
    LEAST_SPARSITY,
    MARGIN,
    MOST_MACS,
    QUICK,
    RECOMMENDED,
    STUDENT_WIDTH,
    Candidate,
    Candidates,
    Effort,
    applied,
    check_file,
    file_bytes,
    general_bytes,
    held_bytes,
    with_rows,
    zoo,
)
from compression_tables import (
    FILE_COLUMNS,
    IMAGE_COLUMNS,
    RATIOS_AT,
    SPARSITIES,
    TEXT_COLUMNS,
    at_most,
    file_cells,
    gain_cell,
    image_cells,
    sparse_cells,
    speed_target,
    within,
)
from generation_tables import header, row
from quantization_tables import Target, accuracy_target, at_least, kept, perplexity_cells

from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import HELD_OUT_IMAGES
from tinytorch.transforms.compression import ModelCompressor
from tinytorch.transforms.low_rank import LowRank
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.remove_layers import RemoveLayers
from tinytorch.transforms.sparse_layers import SparseLayers, time_sparse
from tinytorch.transforms.support.weights import count_macs

LEAST_SPEEDUP = 1.6
LEAST_RATIO, MOST_ABOVE_BOUND = 31, 0.02
JUDGED_ROWS = {32, 256}
"""With one image, calling Python takes as long as computing."""
PRUNING_RATE, STRUCTURE_RATE = 2e-3, 1e-3


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    effort: Effort
    made: Candidates
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    float_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def judge(self, target: Target) -> None:
        """Keep a target; with too little training and time it says nothing."""
        is_judged = self.effort.is_judged
        self.targets.append(target if is_judged else replace(target, verdict="inconclusive"))

    # ------------------------------------------------------------ zeros

    def unstructured(self) -> None:
        """Zeros: how many weights a model can do without."""
        epochs = " and ".join(f"{count} ({name})" for name, count in self.effort.epochs.items())
        print(
            f"The share of right answers on {HELD_OUT_IMAGES:,} held-out images. One-sided bounds "
            f"at 95%; not worse means\nthat at most {MARGIN:.0%} of the images are lost. Epochs of "
            f"training: {epochs}.\n"
        )
        header("model", "sparsity", "way", *IMAGE_COLUMNS)
        for name, count in self.effort.epochs.items():
            trained = self.made.tuned(name, Prune(0.0), count, rate=PRUNING_RATE)
            self._image_row(trained, name, "0%", "the same training")
            for sparsity in self.effort.sparsities:
                self._pruned(name, Prune(sparsity), count)

    def _pruned(self, name: str, transform: Prune, epochs: int) -> None:
        ways = {
            "at once": self.made.at_once(name, transform),
            "at once, then trained": self.made.tuned(name, transform, epochs, rate=PRUNING_RATE),
            "gradually": self.made.gradual(name, transform, epochs),
        }
        sparsity = f"{transform.sparsity:.0%}"
        for way, candidate in ways.items():
            self._image_row(candidate, name, sparsity, way)
        if transform.sparsity == LEAST_SPARSITY:
            for way in ("at once, then trained", "gradually"):
                claim = f"{name}, {sparsity} zeros, {way}: accuracy"
                self.judge(accuracy_target(claim, ways[way].accuracy))

    def _image_row(self, found: Candidate, *names: str) -> None:
        self.raw[f"unstructured, {', '.join(names)}"] = kept(found.accuracy)
        row(*names, *image_cells(found.accuracy))

    # ------------------------------------------------------------ structure

    def structured(self) -> None:
        """Structure: channels, neurons and heads that are really gone."""
        print(
            f"Until {MOST_MACS:.0%} of the multiply-accumulates remain; `untrained` are right "
            "answers right after it, the\nothers follow on training (epochs: "
            f"{self.effort.structure_epochs}). Times as fast as the float model; 95% intervals.\n"
        )
        times = (f"batch {rows}" for rows in self.effort.rows)
        header("model", "by", "MACs left", "bytes held", "of", "untrained", *IMAGE_COLUMNS, *times)
        for name in self.effort.epochs:
            for way, transform in HALVED.items():
                self._halved(name, way, transform)
        self._heads()

    def _halved(self, name: str, way: str, transform: RemoveChannels) -> None:
        untrained = self.made.at_once(name, transform).accuracy.candidate_mean
        found = self._tuned(name, transform)
        macs, before = (count_macs(each, zoo(name)) for each in (found.model, zoo(name).model))
        timed = {rows: self._timed(name, rows, found.model, way) for rows in self.effort.rows}
        row(
            name, way, f"{macs / before:.1%}", f"{held_bytes(found.model):,}",
            f"{held_bytes(zoo(name).model):,}", f"{untrained:.2%}", *image_cells(found.accuracy),
            *map(gain_cell, timed.values()),
        )  # fmt: skip
        self.raw[f"structured, {name}, {way}"] = {
            "macs": macs, "macs_before": before, "untrained": untrained, **kept(found.accuracy)
        }  # fmt: skip
        if way not in RECOMMENDED:
            return
        claim = f"{name}, half the MACs by {way}"
        self.judge(at_most(f"{claim}: MACs left", MOST_MACS, macs / before))
        self.judge(accuracy_target(f"{claim}: accuracy", found.accuracy))
        for rows in sorted(timed.keys() & JUDGED_ROWS):
            speed = f"{claim}: times as fast, batch {rows}"
            self.judge(speed_target(speed, LEAST_SPEEDUP, timed[rows]))

    def _tuned(self, name: str, transform: Any) -> Candidate:
        return self.made.tuned(name, transform, self.effort.structure_epochs, rate=STRUCTURE_RATE)

    def _heads(self) -> None:
        print("\n`gpt` without a quarter of its heads and neurons; perplexity over the float's.\n")
        self._text_table({"a quarter of heads and neurons": RemoveChannels(ratio=0.25)})

    def _text_table(self, transforms: Mapping[str, Any]) -> None:
        """Show a language model before and after an epoch of training."""
        header("without", "training", *TEXT_COLUMNS)
        for name, transform in transforms.items():
            trained = self.made.tuned("gpt", transform, 1, rate=STRUCTURE_RATE)
            ways = {"none": self.made.at_once("gpt", transform), "1 epoch": trained}
            timed = self._compared(zoo("gpt"), trained.model, name)
            for training, found in ways.items():
                self.raw[f"gpt, {name}, {training}"] = kept(found.accuracy)
                sizes = (f"{held_bytes(each):,}" for each in (found.model, zoo("gpt").model))
                time = gain_cell(timed) if found is trained else ""
                row(name, training, *perplexity_cells(found.accuracy), *sizes, time)

    # ------------------------------------------------------------ files

    def files(self) -> None:
        """Files: prune, quantize, encode."""
        print(
            "Against the plain float32 checkpoint, in times smaller. The naive product multiplies "
            "what zeros and bits\nsave; the bound is the entropy of the numbers. zlib and lzma got "
            "the same numbers, dense, INT4 packed.\nEvery file was read back and compared bit for "
            "bit.\n"
        )
        header("model", "settings", *FILE_COLUMNS, *IMAGE_COLUMNS)
        for name, epochs in self.effort.epochs.items():
            for bits, sparsity in ((4, 0.9), (8, 0.87)):
                rounding = self.effort.rounding_epochs[name]
                compressor = ModelCompressor(
                    sparsity, bits, epochs=epochs, rounding_epochs=rounding, margin=MARGIN
                )
                self._file(name, f"{sparsity:.0%} zeros, INT{bits}", compressor)

    def _file(self, name: str, settings: str, compressor: ModelCompressor) -> None:
        result = compressor.compress(zoo(name), self.made.batches(name))
        check_file(result)
        general, accuracy = general_bytes(result), result.accuracy
        assert accuracy is not None
        row(name, settings, *file_cells(result, general), *image_cells(accuracy))
        found = {key: each for key, each in result.to_dict().items() if key != "stages"}
        self.raw[f"files, {name}, {settings}"] = {**found, **general, **kept(accuracy)}
        claim = f"{name}, {settings}"
        if compressor.bits == 4:
            self.judge(at_least(f"{claim}: times smaller", LEAST_RATIO, result.ratio))
            self.judge(accuracy_target(f"{claim}: accuracy", accuracy))
        code, file = result.coding_above_bound, result.above_bound
        self.judge(within(f"{claim}: code over the entropy bound", MOST_ABOVE_BOUND, code))
        self.judge(within(f"{claim}: file, with its header", MOST_ABOVE_BOUND, file))

    # ------------------------------------------------------------ both

    def side_by_side(self) -> None:
        """Structured against unstructured, side by side."""
        print(
            "90% zeros against half the multiply-accumulates, both trained. Files are those of "
            "save_compressed, before\nlayers become sparse. Times as fast as the float model; 95% "
            "intervals.\n"
        )
        for name, epochs in self.effort.epochs.items():
            times = (f"batch {rows}" for rows in self.effort.rows)
            header(name, "bytes held", "file", "file, INT8", *IMAGE_COLUMNS[:3], *times)
            # timed against itself: what differs from 1 there is no difference elsewhere
            self._side(name, "float", self.made.at_once(name, Prune(0.0)))
            pruned = self.made.gradual(name, Prune(0.9), epochs)
            structured = self._tuned(name, HALVED[RECOMMENDED[0]])
            self._side(name, "half the MACs", structured)
            self._side(name, "90% zeros, dense layers", pruned)
            for goal in ("latency", "memory"):
                self._side(name, f"90% zeros, sparse for {goal}", pruned, SparseLayers(goal))
            times = (f"{self.float_s[name, rows] * 1e3:.3f} ms" for rows in self.effort.rows)
            print(f"\nThe float model takes {', '.join(times)}.\n")

    def _side(
        self, name: str, label: str, found: Candidate, transform: SparseLayers | None = None
    ) -> None:
        held, times = [], []
        for rows in self.effort.rows:
            workload = with_rows(name, rows, found.model)
            model = found.model if transform is None else applied(workload, transform)
            held.append(held_bytes(model))
            times.append(gain_cell(self._timed(name, rows, model, label)))
        sizes = (f"{file_bytes(found.model, bits):,}" for bits in (None, 8))
        held_text = " / ".join(f"{each:,}" for each in dict.fromkeys(held))
        row(label, held_text, *sizes, *image_cells(found.accuracy)[:3], *times)

    # ------------------------------------------------------------ sparse kernels

    def sparse(self) -> None:
        """Sparse products: from which sparsity on they are faster."""
        print("How many times as fast as the dense product the sparse one is; 95% intervals.\n")
        at = (f"at {sparsity:.0%}" for sparsity in RATIOS_AT)
        header("inputs x outputs", "rows", "faster from", *at)
        rng, budget_s = np.random.default_rng(0), self.effort.crossover_s / len(SPARSITIES)
        for inputs, outputs in self.effort.shapes:
            weight = rng.standard_normal((inputs, outputs), np.float32)
            order = rng.random(weight.shape, np.float32)
            for rows in self.effort.rows:
                found = {
                    sparsity: time_sparse(
                        np.where(order < sparsity, np.float32(0), weight), rows, budget_s=budget_s
                    ).ratio
                    for sparsity in SPARSITIES
                }
                name = f"sparse, {inputs} x {outputs}, {rows} rows"
                self.raw[name] = {str(at): each.to_dict() for at, each in found.items()}
                row(f"{inputs} x {outputs}", rows, *sparse_cells(found))

    # ------------------------------------------------------------ others

    def others(self) -> None:
        """Low rank, fewer layers, a teacher."""
        transforms = {
            "LowRank(energy=0.9)": LowRank(energy=0.9),
            "LowRank(energy=0.8)": LowRank(energy=0.8),
        }
        header("model", "transform", "bytes held", "of", "untrained", *IMAGE_COLUMNS, "batch 32")
        for name in self.effort.epochs:
            for label, transform in transforms.items():
                untrained = self.made.at_once(name, transform).accuracy.candidate_mean
                found = self._tuned(name, transform)
                sizes = (f"{held_bytes(each):,}" for each in (found.model, zoo(name).model))
                timed = gain_cell(self._timed(name, 32, found.model, label))
                cells = (*sizes, f"{untrained:.2%}", *image_cells(found.accuracy), timed)
                row(name, label, *cells)
                self.raw[f"others, {name}, {label}"] = kept(found.accuracy)
        print("\n`gpt` without whole blocks; perplexity over the float's.\n")
        self._text_table({"1 of 4 blocks": RemoveLayers(1)})
        self._students()

    def _students(self) -> None:
        print(
            f"\nA student with {STUDENT_WIDTH} hidden neurons, with labels only and with `mlp` as "
            f"its teacher; means of {self.effort.seeds} seeds,\nand the range of the differences.\n"
        )
        header("images", "epochs", "labels only", "with a teacher", "difference", "seeds")
        for images, epochs in self.effort.students:
            seeds = range(self.effort.seeds)
            found = np.array([self.made.students(images, epochs, seed=seed) for seed in seeds])
            alone, taught = found.mean(axis=0)
            each = found[:, 1] - found[:, 0]
            means = f"{alone:.2%}", f"{taught:.2%}", f"{taught - alone:+.2%}"
            row(f"{images:,}", epochs, *means, f"{each.min():+.2%} to {each.max():+.2%}")
            self.raw[f"others, students, {images} images"] = found.tolist()

    # ------------------------------------------------------------ time

    def _timed(self, name: str, rows: int, model: Any, label: str) -> Comparison:
        found = self._compared(with_rows(name, rows), model, f"{label}, batch {rows}")
        self.float_s[name, rows] = found.baseline.median
        return found

    def _compared(self, workload: Workload, model: Any, label: str) -> Comparison:
        found = compare(
            replace(workload, evaluate=None),
            replace(workload, model=model, evaluate=None),
            budget_s=self.effort.budget_s,
            precision=0.05,
            evidence=False,
            names=("float", label),
        )
        self.raw[f"time, {workload.name}, {label}"] = found.to_dict()
        return found


SECTIONS = {
    "unstructured": Benchmark.unstructured,
    "structured": Benchmark.structured,
    "files": Benchmark.files,
    "side_by_side": Benchmark.side_by_side,
    "sparse": Benchmark.sparse,
    "others": Benchmark.others,
}


def _make(is_quick: bool) -> Benchmark:
    effort = QUICK if is_quick else Effort()
    return Benchmark(effort, Candidates(effort.images, effort.windows))


def main() -> int:
    warning = "hardly any training, short measurements; accuracy and times mean nothing."
    return run_sections(SECTIONS, _make, about=__doc__, quick=("judges nothing", warning))


if __name__ == "__main__":
    raise SystemExit(main())
