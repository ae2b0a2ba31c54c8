"""Generate with GPT-2 small: with and without a cache, beside llama.cpp, PyTorch and memory.

    python benchmarks/generation.py [--only SECTION ...] [--peer-python PATH] [--json FILE]

Random weights, batch 1. Outputs are checked to agree before anything is timed. A ratio says how
many times as fast we are: above 1 we are faster. All sides take turns; PyTorch and llama.cpp have
the same weights and live in processes of their own. All use as many threads as the process may run
on, or TINYTORCH_BENCHMARK_THREADS. Needs the `test` extra, and llama-cpp-python and gguf in this
interpreter or in the one given by --peer-python or TINYTORCH_LLAMA_PYTHON. Ends with 1 if a target
is missed, and with 3 if one could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

THREADS_VARIABLE = "TINYTORCH_BENCHMARK_THREADS"
THREADS = int(os.environ.setdefault(THREADS_VARIABLE, str(len(os.sched_getaffinity(0)))))
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)  # before any library starts its threads

import generation_sides as sides
import llama_cpp_peer
import numpy as np
from generation_sides import (
    Here,
    Replicate,
    Shape,
    check_close,
    judge,
    median_s,
    times_as_fast,
)
from generation_tables import INTERVAL, Target, against, header, interval, milliseconds, row, show
from interleaving import REPLICATES, Side, side

BACKENDS = ("numba", "numpy")
INT8_MODES = ("weight_only", "dynamic")
INT4 = "INT4"  # in groups of 32, as q4_0
# llama.cpp rounds keys and values to 16 bits, and takes GELU from a table of such numbers.
LIMITS = {"PyTorch": 1e-3, "llama.cpp f32": 1e-2}
LLAMA_MISSING = "llama-cpp-python is not installed (see --peer-python)"


@dataclass(frozen=True)
class Plan:
    """How large everything is, and how often it is repeated."""

    shape: Shape = (50257, 768, 12, 12, 1024)
    positions: tuple[int, ...] = (25, 50, 100, 200, 300, 400, 500)
    prompt: int = 64
    decoded: int = 32
    prefilled: int = 512
    replicates: int = REPLICATES
    rounds: int = 7
    step_rounds: int = 3

    def tokens(self, count: int) -> list[int]:
        return np.random.default_rng(1).integers(0, self.shape[0], count).tolist()


QUICK = Plan(shape=(5000, 256, 2, 4, 1024), positions=(25, 200), decoded=4, replicates=2, rounds=2)


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    plan: Plan
    python: str | None  # the interpreter that has llama.cpp
    files: Path
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, list[Replicate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = sides.random_gpt(self.plan.shape)
        self.prompt = self.plan.tokens(self.plan.prompt)
        self.decoded = self.plan.tokens(self.plan.prompt + self.plan.decoded)[self.plan.prompt :]
        if self.python is not None:
            heads = self.plan.shape[3]
            llama_cpp_peer.write_models(self.python, self.model.state_dict(), heads, self.files)

    # ------------------------------------------------------------ sections

    def steps(self) -> None:
        """The step to the next token, with a cache and without."""
        print(
            "The cached step computes one token, the uncached one all of them again. The faster a"
            "\nforward pass computes many tokens, the smaller the gain of the cache: a cached step"
            "\nis bound by memory, whatever the backend. `Last logits` is an uncached step that"
            "\nleaves out the logits of earlier tokens, which the plain forward pass also gives.\n"
        )
        header("backend", "position", "cached", "uncached", "gain", INTERVAL, "last logits", "gain")
        for backend in reversed(BACKENDS):
            for position in self.plan.positions:
                self._steps_at(backend, position)

    def _steps_at(self, backend: str, position: int) -> None:
        ids = np.array([self.plan.tokens(position)])
        replicates = []
        for _ in range(self.plan.replicates):
            runs = sides.next_token_steps(self.model, backend, ids)
            for name in ("uncached", "last logits"):
                check_close(f"cached and {name}", runs["cached"](), runs[name](), 1e-4)
            turns = {name: Here(run) for name, run in runs.items()}
            replicates.append(sides.take_turns(turns, self.plan.step_rounds))
        self.raw[f"step, {backend}, position {position}"] = replicates
        gain = times_as_fast("cached", "uncached", replicates)
        least = times_as_fast("cached", "last logits", replicates)
        row(backend, position, milliseconds(gain.baseline_s), milliseconds(gain.candidate_s),
            f"{gain.median:.1f}", interval(gain), milliseconds(least.candidate_s),
            f"{least.median:.1f}")  # fmt: skip
        if (backend, position) == ("numpy", 200):
            self.targets.append(Target("cached step, numpy, position 200: gain", 10, gain))

    def fp32(self) -> None:
        """Decoding in fp32."""
        replicates = list(self._fp32_replicates())
        self.raw["fp32 decode"] = replicates
        read = sum(array.nbytes for array in sides.step_weights(self.model))
        self._show_decoding(replicates, read, reference="llama.cpp f32")
        self._target("fp32 decode", "numba", "llama.cpp f32", 1.0, replicates)
        self._target_share("numba", replicates)

    def _fp32_replicates(self) -> Iterator[Replicate]:
        with ExitStack() as stack:
            llama = self._llama(stack, "f32")
            for _ in range(self.plan.replicates):
                self._start(llama, "decode", self.prompt, self.decoded)
                sides.move(self.model)
                ours = {
                    name: sides.OurDecoding(self.model, backend, self.prompt, self.decoded)
                    for name, backend in (*zip(BACKENDS, BACKENDS, strict=True), sides.by_layers())
                }
                logits = {name: decoding.check() for name, decoding in ours.items()}
                check_close("numba and numpy", logits["numba"], logits["numpy"], 1e-3)
                for name, peer in llama.items():
                    check_close(f"numpy and {name}", logits["numpy"], peer.built(), LIMITS[name])
                here = {name: Here(decoding) for name, decoding in ours.items()}
                probe = Here(sides.reading(sides.step_weights(self.model)))
                turns = {**here, "read": probe, **llama}
                yield self._per_token(sides.take_turns(turns, self.plan.rounds))

    def int8(self) -> None:
        """Decoding in INT8 and INT4."""
        exact = sides.OurDecoding(self.model, "numpy", self.prompt, self.decoded).check()
        quantized = {mode: sides.int8_gpt(self.model, mode) for mode in INT8_MODES}
        quantized[INT4] = sides.int4_gpt(self.model)
        quality: dict[str, str] = {}
        replicates = []
        with ExitStack() as stack:
            llama = self._llama(stack, "q8_0", "q4_0")
            for _ in range(self.plan.replicates):
                self._start(llama, "decode", self.prompt, self.decoded)
                models = {name: deepcopy(model) for name, model in quantized.items()}  # moved
                ours = {
                    mode: sides.OurDecoding(model, "numba", self.prompt, self.decoded)
                    for mode, model in models.items()
                }
                name, backend = sides.by_layers()
                mode = INT8_MODES[0]
                ours[f"{mode}, {name}"] = sides.OurDecoding(
                    models[mode], backend, self.prompt, self.decoded
                )
                for name, decoding in ours.items():
                    least_db = 5 if name == INT4 else 20
                    quality[name] = judge(name, exact, decoding.check(), least_db=least_db)
                for name, peer in llama.items():
                    quality[name] = judge(name, exact, peer.built(), least_db=5)
                here = {name: Here(decoding) for name, decoding in ours.items()}
                arrays = sides.whole_numbers(models[INT8_MODES[0]])
                turns = {**here, "read": Here(sides.reading(arrays)), **llama}
                replicates.append(self._per_token(sides.take_turns(turns, self.plan.rounds)))
        self.raw["INT8 decode"] = replicates
        read = sum(array.nbytes for array in arrays)
        self._show_decoding(replicates, read, reference="llama.cpp q8_0", more=quality)
        best = min(INT8_MODES, key=lambda name: median_s(name, replicates))
        self._target("INT8 decode", best, "llama.cpp q8_0", 1.1, replicates)
        self._target("INT4 decode", INT4, "llama.cpp q4_0", 1.0, replicates)

    def prefill(self) -> None:
        """Prefill: the logits of a whole prompt, which then is in the cache."""
        print(
            f"{self.plan.prefilled} tokens. PyTorch gives the logits of every token and keeps"
            "\nnothing; to continue a prompt, those of the last one are enough.\n"
        )
        header("logits", "side", "time", "times as fast as PyTorch", INTERVAL,
               "times as fast as llama.cpp f32", INTERVAL)  # fmt: skip
        for title in ("all", "last"):
            replicates = list(self._prefill_replicates(last_only=title == "last"))
            self.raw[f"prefill, {title}"] = replicates
            for name in replicates[0][0]:
                row(title, name, milliseconds(median_s(name, replicates)),
                    *against(name, "PyTorch", replicates),
                    *against(name, "llama.cpp f32", replicates))  # fmt: skip
            if title == "all":
                self._target("prefill", "numba", "PyTorch", 1.0, replicates)
            else:
                self._target("prefill", "numba", "llama.cpp f32", 1.0, replicates)

    def _prefill_replicates(self, *, last_only: bool) -> Iterator[Replicate]:
        prompt = self.plan.tokens(self.plan.prefilled)
        with ExitStack() as stack:
            peers = llama = self._llama(stack, "f32")
            if not last_only:
                torch = stack.enter_context(side(sides.build_torch))
                peers = {"PyTorch": torch, **llama}
            for _ in range(self.plan.replicates):
                self._start(llama, "prefill last" if last_only else "prefill", prompt, [])
                if not last_only:
                    torch.start(self.plan.shape, prompt, THREADS)
                sides.move(self.model)
                exact = sides.prefilling(self.model, "numpy", prompt)()
                for name, peer in peers.items():
                    check_close(f"numpy and {name}", exact, peer.built(), LIMITS[name])
                runs = {
                    name: sides.prefilling(self.model, name, prompt, last_only=last_only)
                    for name in BACKENDS
                }
                for name, run in runs.items():
                    check_close(
                        f"numpy and {name}", exact[-1:] if last_only else exact, run(), 1e-3
                    )
                here = {name: Here(run) for name, run in runs.items()}
                yield sides.take_turns({**here, **peers}, self.plan.rounds)

    # ------------------------------------------------------------ parts of sections

    def _llama(self, stack: ExitStack, *formats: str) -> dict[str, Side]:
        """Start a process of llama.cpp for each format of weights, if it is installed."""
        if self.python is None:
            return {}
        return {
            f"llama.cpp {name}": stack.enter_context(llama_cpp_peer.peer(self.python))
            for name in formats
        }

    def _start(
        self, llama: Mapping[str, Side], task: str, prompt: list[int], decoded: list[int]
    ) -> None:
        for name, peer in llama.items():
            path = self.files / f"{name.split()[-1]}.gguf"
            peer.start(str(path), task, prompt, decoded, THREADS, self.plan.shape[-1])

    def _per_token(self, replicate: Replicate) -> Replicate:
        count = self.plan.decoded
        return [
            {name: value if name == "read" else value / count for name, value in seconds.items()}
            for seconds in replicate
        ]

    def _show_decoding(
        self, replicates: list[Replicate], read: int, reference: str, more: Mapping[str, str] = {}
    ) -> None:
        speed = read / median_s("read", replicates) / 1e9
        print(
            f"Each step reads {read / 1e6:.1f} MB of weights. A loop that only reads the same"
            f"\narrays (`read`, {speed:.1f} GB/s) shows what memory allows.\n"
        )
        header("side", "per token", "tokens/s", f"times as fast as {reference}", INTERVAL,
               "share of `read`", INTERVAL, *["against fp32"][: len(more)])  # fmt: skip
        for name in replicates[0][0]:
            if name != "read":
                is_ours = not name.startswith(("llama", INT4))  # which read other bytes
                share = against(name, "read", replicates) if is_ours else ("", "")
                seconds = median_s(name, replicates)
                row(name, milliseconds(seconds), f"{1 / seconds:.1f}",
                    *against(name, reference, replicates), *share,
                    *([more[name]] if more else []))  # fmt: skip

    def _target(
        self, what: str, ours: str, other: str, at_least: float, replicates: list[Replicate]
    ) -> None:
        name = f"{what}: {ours}, times as fast as {other}"
        found = times_as_fast(ours, other, replicates) if other in replicates[0][0] else None
        self.targets.append(Target(name, at_least, found, LLAMA_MISSING))

    def _target_share(self, ours: str, replicates: list[Replicate]) -> None:
        found = times_as_fast(ours, "read", replicates)
        self.targets.append(Target(f"fp32 decode: {ours}, share of memory's speed", 0.85, found))


SECTIONS = {
    "steps": Benchmark.steps,
    "fp32": Benchmark.fp32,
    "int8": Benchmark.int8,
    "prefill": Benchmark.prefill,
}

# ---------------------------------------------------------------- running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter with llama.cpp")
    parser.add_argument("--replicates", type=int, help="how often everything is built anew")
    parser.add_argument("--rounds", type=int, help="turns of each side in a replicate")
    parser.add_argument("--json", type=Path, help="write raw values here")
    parser.add_argument(
        "--quick", action="store_true", help="only try whether everything works, on a small model"
    )
    options = parser.parse_args()
    python = llama_cpp_peer.find_python(options.peer_python)
    setting = {
        "threads": THREADS, "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "torch")},
        "llama.cpp": LLAMA_MISSING if python is None else llama_cpp_peer.describe(python),
    }  # fmt: skip
    print("\n".join(f"{name}: {value}  " for name, value in setting.items()))
    if options.quick:
        print("\n**Quick: this only shows that everything works; the figures mean nothing.**")
    with tempfile.TemporaryDirectory() as folder:
        plan = QUICK if options.quick else Plan()
        given = {"replicates": options.replicates, "rounds": options.rounds}
        plan = replace(plan, **{name: count for name, count in given.items() if count})
        if options.only == ["steps"]:
            python = None  # no model files are needed
        benchmark = Benchmark(plan, python, Path(folder))
        for name in options.only:
            print(f"\n## {SECTIONS[name].__doc__.rstrip('.')}\n", flush=True)
            SECTIONS[name](benchmark)
    print("\n## Targets\n")
    show(benchmark.targets)
    verdicts = {target.name: target.verdict for target in benchmark.targets}
    if options.json:
        found = {"targets": verdicts, "seconds": benchmark.raw}
        options.json.write_text(json.dumps({**setting, "plan": vars(plan), **found}, indent=1))
    if "missed" in verdicts.values():
        return 1
    return 3 if any(verdict != "met" for verdict in verdicts.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
