"""Quantized decoders of transformers: bytes held, files, outputs and time, on a CPU or a GPU.

    python benchmarks/torch_quantization.py [--device cuda] [--quick] [--json FILE]

GPT-2 small and a Llama of 1.1 billion parameters with random weights, in float32 on a CPU and in
bfloat16 on a GPU. Outputs are checked before anything is timed: on a GPU against the float model
with the same rounded weights. A ratio of time is the candidate's over the baseline's, by our own
comparer: below 1 the candidate is faster. On a GPU both sides are also timed compiled: each block
and the head by itself, all of it as one CUDA graph. Every row is measured in a process of its own.
Needs torch, transformers and torchao; starts no row after --limit seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_quantization_sides import (
    MODELS,
    allow_many_versions,
    compiled_call,
    file_bytes,
    held,
    ideal,
    logits,
    relative_error,
    with_rounded_weights,
    workload,
)

from tinytorch import Workload, compare
from tinytorch.measure.environment import cpu_model
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.quantizers import torchao_version

TRANSFORMS = {
    "weights INT8": Quantize(mode="weight_only"),
    "weights INT4": Quantize(mode="weight_only", bits=4),
    "dynamic INT8": Quantize(mode="dynamic"),
    "static INT8": Quantize(mode="static"),
}
MOST_ERROR = {"weights INT8": 0.1, "weights INT4": 0.7, "dynamic INT8": 0.2, "static INT8": 0.3}
"""A candidate whose outputs are further off than this is not timed: something is broken. Random
weights carry rounding further than trained ones: noise as large as that of INT4 moves the outputs
of 22 such blocks by half of their size."""
MOST_KERNEL_ERROR = 0.2
"""Likewise for two ways to compute with the same weights in bfloat16."""
LONGEST_CALL_S = 4.0
TOKENS = (1, 128)
FEWEST_ROWS = 17
"""PyTorch's product of INT8 matrices on a GPU takes no fewer rows; compiled, there is no other."""
WIDEST_REASON = 160


@dataclass
class Row:
    """What was found for one model and one way to quantize it; times by the number of tokens."""

    model: str
    transform: str
    steps: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    predicted: float | None = None
    bytes: tuple[int, int] | None = None
    ideal_bytes: int | None = None
    file_bytes: tuple[int, int] | None = None
    error: float | None = None
    kernel_error: float | None = None
    eager: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None


def one_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first}"[:WIDEST_REASON]


@contextmanager
def noted(row: Row, name: str) -> Iterator[None]:
    """Keep what fails as a reason, and go on."""
    try:
        yield
    except Exception as error:
        row.not_measured[name] = one_line(error)


# ---------------------------------------------------------------- one row


def measure(model: str, name: str, options: argparse.Namespace) -> Row:
    """Quantize a model in one way and measure what came of it."""
    started = time.perf_counter()
    row = Row(model, name)
    with noted(row, "quantized model"):
        case = workload(model, options)
        quantized = quantize(row, case)
        check_outputs(row, case, quantized, options)
        if "time" not in row.not_measured and row.steps:
            if options.eager:
                time_eager(row, case, quantized, options)
            if options.compile:
                time_compiled(row, case, quantized, options)
    row.seconds = time.perf_counter() - started
    return row


def quantize(row: Row, case: Workload) -> nn.Module:
    transform = TRANSFORMS[row.transform]
    plan = transform.plan(case)
    model: nn.Module = transform.apply(case, plan)
    row.steps = count([str(step.settings["by"]) for step in plan.steps])
    row.skipped = count([each.reason for each in plan.skipped])
    row.notes = list(plan.notes)
    row.predicted = plan.shrinkage.value if plan.shrinkage else None
    row.bytes, row.ideal_bytes = (held(case.model), held(model)), ideal(case, plan)
    row.file_bytes = (file_bytes(case.model), file_bytes(model))
    return model


def count(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}


def check_outputs(
    row: Row, case: Workload, quantized: nn.Module, options: argparse.Namespace
) -> None:
    """Compare with the float model, and where only weights are rounded with that in floats."""
    ids = case.inputs[0]
    found = logits(quantized, ids)
    row.error = relative_error(found, logits(case.model, ids))
    # On a CPU PyTorch's INT4 product of float32 would take minutes for these matrices.
    if TRANSFORMS[row.transform].mode == "weight_only" and options.device == "cuda":
        twin = with_rounded_weights(case.model, quantized)
        row.kernel_error = relative_error(found, logits(twin, ids))
    if not (row.error < MOST_ERROR[row.transform]):  # also NaN
        row.not_measured["time"] = f"the outputs are off by {row.error:.3f}"
    if row.kernel_error is not None and not row.kernel_error < MOST_KERNEL_ERROR:
        row.not_measured["time"] = f"with the same weights it is off by {row.kernel_error:.3f}"


def timed(baseline: Any, candidate: Any, budget_s: float) -> dict[str, Any]:
    """Compare by our comparer, without the evidence that stands in the other columns."""
    found = compare(baseline, candidate, evidence=False, budget_s=budget_s)
    return {
        "ratio": found.time_ratio,
        "low": found.time_ratio_low,
        "high": found.time_ratio_high,
        "verdict": found.verdict,
        "n": found.n,
        "call_s": list(found.pace.call_s),
        "notes": list(found.notes),
    }


def ids_of(case: Workload, tokens: int) -> torch.Tensor:
    ids: torch.Tensor = case.inputs[0].repeat(1, 2)[:1, :tokens].contiguous()
    return ids


def call_seconds(call: Callable[[], Any], device: str) -> float:
    def finish() -> float:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    begin = finish()
    return finish() - begin


def time_eager(row: Row, case: Workload, quantized: nn.Module, options: argparse.Namespace) -> None:
    for tokens in TOKENS:
        name = f"eager, tokens: {tokens}"
        one = replace(case, inputs=(ids_of(case, tokens),))
        other = replace(one, name=row.transform, model=quantized)
        with noted(row, name), torch.no_grad():
            seconds = call_seconds(other.run, options.device)
            if seconds > LONGEST_CALL_S:
                row.not_measured[name] = f"one call takes {seconds:.1f} s"
                continue
            row.eager[str(tokens)] = timed(one, other, options.budget)


def time_compiled(
    row: Row, case: Workload, quantized: nn.Module, options: argparse.Namespace
) -> None:
    has_integers = TRANSFORMS[row.transform].mode != "weight_only"
    for tokens in TOKENS:
        name = f"compiled, tokens: {tokens}"
        if has_integers and options.device == "cuda" and tokens < FEWEST_ROWS:
            reason = f"PyTorch's product of INT8 matrices on a GPU takes {FEWEST_ROWS} rows or more"
            row.not_measured[name] = reason
            continue
        try:
            found = compare_compiled(case, quantized, ids_of(case, tokens), options)
            row.compiled[str(tokens)] = found
        except Exception as error:
            row.not_measured[name] = one_line(error)
            if options.device == "cuda":  # what comes after a failed capture cannot be trusted
                return


def compare_compiled(
    case: Workload, quantized: nn.Module, ids: torch.Tensor, options: argparse.Namespace
) -> dict[str, Any]:
    """Time both sides compiled, if the candidate computes the same as before."""
    expected, eager = logits(case.model, ids), logits(quantized, ids)
    begin = time.perf_counter()
    baseline, how = compiled_call(case.model, ids, tuning=options.tuning)
    call, _ = compiled_call(quantized, ids, tuning=options.tuning)
    seconds = time.perf_counter() - begin
    found = call().float()
    off = relative_error(found, eager)
    if not off < MOST_KERNEL_ERROR:
        raise RuntimeError(f"the compiled outputs are off by {off:.3f}")
    facts = {"how": how, "tuning": options.tuning, "compiling_s": seconds, "kernel_error": off}
    facts["error"] = relative_error(found, expected)
    return facts | timed(baseline, call, options.budget)


# ---------------------------------------------------------------- all rows


def measure_apart(model: str, name: str, options: argparse.Namespace) -> Row:
    """Measure in a process of its own: a capture that fails leaves PyTorch broken."""
    switches = {"quick": options.quick, "compile": options.compile, "tuning": options.tuning}
    switches["eager"] = options.eager
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, __file__, "--here", "--device", options.device]
        command += ["--budget", str(options.budget), "--models", model, "--transforms", name]
        command += [f"--{key}" if on else f"--no-{key}" for key, on in switches.items()]
        try:
            done = subprocess.run(
                [*command, "--json", str(path)],
                capture_output=True,
                text=True,
                timeout=options.row_limit,
            )
        except subprocess.TimeoutExpired:
            return Row(model, name, not_measured={"all": f"not done in {options.row_limit:g} s"})
        if not path.exists():
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            reason = f"its process ended with {done.returncode}: {said}"[:WIDEST_REASON]
            return Row(model, name, not_measured={"all": reason})
        return Row(**json.loads(path.read_text())["rows"][0])


def measure_all(options: argparse.Namespace) -> None:
    started, rows = time.perf_counter(), []
    for model in options.models:
        for name in options.transforms:
            if time.perf_counter() - started > options.limit:
                row = Row(model, name, not_measured={"all": "the time was over"})
            else:
                row = (measure if options.here else measure_apart)(model, name, options)
            rows.append(row)
            show(row)
            write(rows, options)


def write(rows: list[Row], options: argparse.Namespace) -> None:
    if options.json:
        kept = {"device": options.where, "versions": options.versions}
        rows_too = kept | {"rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(rows_too, indent=1))


# ---------------------------------------------------------------- the table

COLUMNS = ["model", "quantized", "held before", "after", "smaller", "of ideal", "file smaller"]
COLUMNS += ["error", "same weights"]
COLUMNS += [f"{how}, tokens: {tokens}" for how in ("time", "compiled") for tokens in TOKENS]


def ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def show(row: Row) -> None:
    cells = [row.model, row.transform]
    if row.bytes and row.ideal_bytes and row.file_bytes and row.error is not None:
        before, after = row.bytes
        cells += [
            f"{before / 2**20:.1f} MiB",
            f"{after / 2**20:.1f} MiB",
            f"{before / after:.2f}x",
            f"{row.ideal_bytes / after:.1%}",
            f"{row.file_bytes[0] / row.file_bytes[1]:.2f}x",
            f"{row.error:.4f}",
            "-" if row.kernel_error is None else f"{row.kernel_error:.4f}",
        ]
        for found in (row.eager, row.compiled):
            cells += [ratio(found.get(str(tokens))) for tokens in TOKENS]
    print("| " + " | ".join(cells) + " |", flush=True)
    for tokens, found in row.compiled.items():
        calls = " and ".join(f"{seconds * 1e3:.3f} ms" for seconds in found["call_s"])
        print(f"  {found['how']}, tokens: {tokens}: {calls}", flush=True)
    for what, reason in row.not_measured.items():
        print(f"  not measured: {what}: {reason}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    switch = argparse.BooleanOptionalAction
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--transforms", nargs="+", choices=TRANSFORMS, default=list(TRANSFORMS))
    parser.add_argument("--quick", action=switch, help="one or two blocks, a small vocabulary")
    parser.add_argument("--eager", action=switch, default=True)
    parser.add_argument("--compile", action=switch, help="default: on a GPU only")
    parser.add_argument(
        "--tuning", action=switch, default=True, help="compile both with coordinate descent"
    )
    parser.add_argument("--here", action="store_true", help="measure all rows in this process")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each comparison")
    parser.add_argument("--row-limit", type=float, default=180.0, help="seconds for each row")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all of it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile is None:
        options.compile = options.device == "cuda"
    return options


def main() -> None:
    options = parse()
    allow_many_versions()
    is_cuda = options.device == "cuda"
    options.where = torch.cuda.get_device_name() if is_cuda else str(cpu_model())
    options.versions = {name: version(name) for name in ("torch", "transformers")}
    options.versions["torchao"] = str(torchao_version())
    print(f"{options.where}, {options.versions}, {torch.get_num_threads()} threads")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    measure_all(options)


if __name__ == "__main__":
    main()
