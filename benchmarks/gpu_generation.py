"""Generation with a preallocated cache beside `generate`, the memory limit, and what lies between.

    python benchmarks/gpu_generation.py [--device cuda] [--only NAME ...] [--quick]
                                        [--limit SECONDS] [--json FILE]

A Llama of 1.1 billion parameters in bfloat16 and GPT-2 small in float32 and bfloat16, with random
weights; prompts of 8 tokens, 200 new ones, greedily. Tokens are compared with those of `generate`
before anything is timed, and where they part, the model's own scores say whether that is rounding.
Tokens per second are those of the whole call, the prompt included. A step is what 100 tokens more
take, over 100. The memory limit is the time to read once, at the bandwidth that reading reaches in
the same run, every parameter that a step needs (all but tables of embeddings) and the keys and
values of an average step.

`--limit` is for each section, of which the most important come first; one that fails does not keep
the others from running. On a CPU use `--quick`, with tiny shapes. Needs torch and transformers.
"""

from __future__ import annotations

import gc
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch_sections import run_torch_sections

# isort: split
import torch
import transformers
from generation_tables import header, row
from quantization_tables import Target, at_least

from tinytorch import Workload, compare
from tinytorch.transforms.static_generation import generation_call, static_generator
from tinytorch.transforms.static_generation.generation import explain_divergence

PROMPT = 8
LEAST_LLAMA, LEAST_GPT2 = 1300, 1500
KINDS = {
    "products": r"_joint_kernel|_gated_kernel|gemv|gemm|gemvx|cutlass|cublas|splitk|nvjet|mm\b",
    "attention": r"_attend_kernel|attention|flash|fmha|sdpa",
    "norms, sums, rotations (inductor)": r"triton_|cpp_fused",
    "choosing the token": r"argmax|topk|sort|reduce",
    "copies": r"memcpy|memset|copy|index|fill",
}
"""Kinds of kernels by what is in their names, the first that fits."""
COLUMNS = ("model", "way", "tokens/s", "ms per step", "once", "limit: tokens/s", "of the limit")
COLUMNS += ("cache", "tokens as by generate")


@dataclass(frozen=True)
class Effort:
    """How much is done; what is not judged says nothing."""

    new_tokens: int = 200
    calls: int = 7
    budget_s: float = 5.0
    read_bytes: int = 2 << 30
    is_judged: bool = True


QUICK = Effort(new_tokens=20, calls=2, budget_s=0.2, read_bytes=1 << 26, is_judged=False)


@dataclass(frozen=True)
class Shape:
    """A model to build: which, and in which dtype."""

    name: str
    dtype: torch.dtype

    @property
    def label(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


LLAMA = Shape("Llama 1.1B", torch.bfloat16)
GPT2 = Shape("GPT-2 small", torch.float32)
GPT2_HALF = Shape("GPT-2 small", torch.bfloat16)


def build(shape: Shape, device: str, *, is_quick: bool) -> Any:
    """Give a decoder with random weights that never ends a text."""
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = (_llama if shape.name.startswith("Llama") else _gpt2)(is_quick)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval().to(shape.dtype)


def _llama(is_quick: bool) -> Any:
    sizes = (64, 128, 3, 4, 2, 1000) if is_quick else (2048, 8192, 16, 32, 8, 32000)
    width, hidden, layers, heads, shared, tokens = sizes
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=shared, vocab_size=tokens,
        )
    )  # fmt: skip


def _gpt2(is_quick: bool) -> Any:
    small = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
    config = transformers.GPT2Config(**(small if is_quick else {}), bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


@dataclass(frozen=True)
class Prepared:
    """A generator that is ready, the call that it replaces, and what to call both with."""

    label: str
    way: str
    generator: Any
    by_generate: Any
    inputs: tuple[torch.Tensor, ...]
    differs: str

    @property
    def batch(self) -> int:
        return int(self.inputs[0].shape[0])


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    effort: Effort
    device: str
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    _models: dict[Shape, Any] = field(default_factory=dict)
    _bandwidth: float = 0.0

    def judge(self, target: Target) -> None:
        """Keep a target; tiny models say nothing about it."""
        is_judged = self.effort.is_judged
        self.targets.append(target if is_judged else replace(target, verdict="inconclusive"))

    # ------------------------------------------------------------ sections

    def llama(self) -> None:
        """Llama of 1.1 billion parameters, bfloat16, one sequence."""
        prepared = self.prepare(LLAMA)
        self.judge(at_least("Llama 1.1B: tokens/s", LEAST_LLAMA, self.measure(prepared)))
        self.show_kernels(prepared)
        self.against_generate(prepared)

    def gpt2(self) -> None:
        """GPT-2 small, float32, one sequence."""
        prepared = self.prepare(GPT2)
        self.judge(at_least("GPT-2 small: tokens/s", LEAST_GPT2, self.measure(prepared)))
        self.show_kernels(prepared)
        self.against_generate(prepared)

    def gpt2_half(self) -> None:
        """GPT-2 small, bfloat16, one sequence."""
        prepared = self.prepare(GPT2_HALF)
        self.measure(prepared)
        self.against_generate(prepared)

    def uncompiled(self) -> None:
        """Without compiling: the step captured as it is."""
        for shape in (LLAMA, GPT2, GPT2_HALF):
            self.measure(self.prepare(shape, compile=False))
            print()

    def batch4(self) -> None:
        """Four sequences."""
        self.measure(self.prepare(LLAMA, batch=4))

    def batch16(self) -> None:
        """Sixteen sequences."""
        self.measure(self.prepare(LLAMA, batch=16))

    def ragged(self) -> None:
        """Four sequences with prompts of 2, 4, 6 and 8 tokens."""
        self.measure(self.prepare(LLAMA, batch=4, is_ragged=True))

    # ------------------------------------------------------------ preparing and checking

    def prepare(
        self, shape: Shape, *, batch: int = 1, is_ragged: bool = False, compile: bool = True
    ) -> Prepared:
        """Build, prepare and check a generator; what was compiled for another one is forgotten."""
        gc.collect()
        torch.compiler.reset()
        model = self._model(shape)
        new = self.effort.new_tokens
        inputs = self._inputs(model, batch, is_ragged)
        by_generate = generation_call(model, max_new_tokens=new)
        # One length for both calls that give the time of a step.
        length = -(-(PROMPT + new) // 64) * 64
        generator = static_generator(model, max_new_tokens=new, length=length, compile=compile)
        generator.prepare(*inputs)
        for note in generator.notes:
            print(f"note: {note}\n")
        mask = inputs[1] if is_ragged else None
        expected, found = by_generate(*inputs), generator(*inputs)
        parted = explain_divergence(model, expected, found, PROMPT, mask)
        for each in parted:
            print(f"{each}\n")
        wrong = [each for each in parted if not each.is_rounding]
        assert not wrong, f"other tokens than those of generate: {wrong[0]}"
        differs = f"{batch - len(parted)} of {batch}, {len(parted)} by rounding"
        way = "+".join(each.what for each in generator.preparations) or "as it is"
        label = f"{shape.label}, {'ragged ' if is_ragged else ''}{batch} x {PROMPT}"
        return Prepared(
            label,
            way,
            generator,
            by_generate,
            inputs,
            differs if parted else f"all {found.numel()}",
        )

    def _model(self, shape: Shape) -> Any:
        if shape not in self._models:
            self._models.clear()  # one at a time
            gc.collect()
            self._models[shape] = build(shape, self.device, is_quick=not self.effort.is_judged)
        return self._models[shape]

    def _inputs(self, model: Any, batch: int, is_ragged: bool) -> tuple[torch.Tensor, ...]:
        drawn = torch.Generator().manual_seed(1)
        ids = torch.randint(5, model.config.vocab_size, (batch, PROMPT), generator=drawn)
        ids = ids.to(self.device)
        if not is_ragged:
            return (ids,)
        lengths = torch.arange(1, batch + 1, device=self.device) * PROMPT // batch
        mask = torch.arange(PROMPT, device=self.device)[None] >= PROMPT - lengths[:, None]
        return ids * mask, mask.long()

    # ------------------------------------------------------------ measuring

    def measure(self, prepared: Prepared) -> float:
        """Print a row, and give the tokens per second of a whole call."""
        effort, generator = self.effort, prepared.generator
        new = effort.new_tokens
        whole, more = self.call_seconds(prepared)
        call_s = statistics.median(whole)
        step_s = statistics.median(more) / (new - new // 2)
        limit_s = self.limit_seconds(prepared)
        found = prepared.batch * new / call_s
        once = sum(each.seconds for each in generator.preparations)
        header(*COLUMNS)
        row(
            prepared.label,
            prepared.way,
            f"{found:,.0f}",
            f"{step_s * 1e3:.3f}",
            f"{once:.1f} s",
            f"{prepared.batch / limit_s:,.0f} ({limit_s * 1e3:.3f} ms)",
            f"{limit_s / step_s:.0%}",
            f"{generator.cache_bytes / 2**20:.1f} MiB",
            prepared.differs,
        )
        self.raw[f"{prepared.label}, {prepared.way}"] = {
            "whole_call_s": whole,
            "more_than_for_half_as_many_tokens_s": more,
            "step_s": step_s,
            "limit_s": limit_s,
            "preparations": [each.to_dict() for each in generator.preparations],
        }
        return found

    def call_seconds(self, prepared: Prepared) -> tuple[list[float], list[float]]:
        """Give the seconds of calls, and how much less each took for half as many tokens."""
        generate, half = prepared.generator.generate, self.effort.new_tokens // 2
        whole = self.seconds(lambda: generate(*prepared.inputs), self.effort.calls)
        shorter = self.seconds(
            lambda: generate(*prepared.inputs, max_new_tokens=half), self.effort.calls
        )
        pairs = list(zip(whole, shorter, strict=True))  # in turns
        return [one for one, _ in pairs], [one - other for one, other in pairs]

    def seconds(self, call: Callable[[], Any], calls: int) -> Iterator[float]:
        """Give the seconds of some calls after one that does not count."""
        call()
        for _ in range(calls):
            self.wait()
            started = perf_counter()
            call()
            self.wait()
            yield perf_counter() - started

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def limit_seconds(self, prepared: Prepared) -> float:
        """Give how long reading alone takes, what a step of average length has to read."""
        model = prepared.generator.model
        head = model.get_output_embeddings().weight
        tables = [each.weight for each in model.modules() if isinstance(each, torch.nn.Embedding)]
        looked_up = {id(each) for each in tables if each is not head}
        read = sum(each.nbytes for each in model.parameters() if id(each) not in looked_up)
        # What is held is for `length` tokens of room; an average step reads those up to its own.
        steps = PROMPT + self.effort.new_tokens / 2
        room = -(-(PROMPT + self.effort.new_tokens) // 64) * 64
        read += int(prepared.generator.cache_bytes * steps / room)
        return read / self.bandwidth()

    def bandwidth(self) -> float:
        """Give the bytes per second at which a large array is read and summed up here."""
        if not self._bandwidth:
            values = torch.ones(self.effort.read_bytes // 4, device=self.device)
            best = min(self.seconds(values.sum, 10))
            self._bandwidth = values.nbytes / best
            size = self.effort.read_bytes / 2**30
            print(f"\nreading {size:g} GiB: {self._bandwidth / 1e9:,.0f} GB/s\n", flush=True)
            self.raw["bandwidth"] = self._bandwidth
        return self._bandwidth

    def against_generate(self, prepared: Prepared) -> None:
        """Compare whole calls with those of `generate`, in turns."""
        one = Workload("generate", prepared.by_generate, prepared.inputs)
        other = Workload("static", prepared.generator, prepared.inputs)
        # What else could be compared, is: the tokens. Recording 200 steps would take minutes.
        found = compare(one, other, budget_s=self.effort.budget_s, evidence=False)
        rate = prepared.batch * self.effort.new_tokens
        rates = [f"{rate / each.median:,.0f}" for each in (found.baseline, found.candidate)]
        print(
            f"\nby the comparer: generate {rates[0]} tokens/s, static {rates[1]}: "
            f"{found.speedup:.1f} times as fast ({found.speedup_low:.1f} to "
            f"{found.speedup_high:.1f}, n={found.n}), {found.verdict}"
        )
        for note in found.notes:
            print(f"- {note}")
        self.raw[f"{prepared.label}: against generate"] = found.to_dict()

    # ------------------------------------------------------------ what a step consists of

    def show_kernels(self, prepared: Prepared) -> None:
        """Print the time of each kind of kernel in one replayed step."""
        (session,) = prepared.generator._sessions.values()
        activity = torch.profiler.ProfilerActivity
        is_cuda = self.device == "cuda"
        with session.running():
            session.step()
            self.wait()
            with torch.profiler.profile(
                activities=[activity.CUDA if is_cuda else activity.CPU]
            ) as profiled:
                session.step()
                self.wait()
        times: dict[str, list[float]] = defaultdict(list)
        for each in profiled.key_averages():
            spent = each.self_device_time_total if is_cuda else each.self_cpu_time_total
            if spent:
                times[kind_of(each.key)] += [spent / 1e3 / each.count] * each.count
        print()
        header("kind of kernel", "launches", "ms")
        for kind, values in sorted(times.items(), key=lambda item: -sum(item[1])):
            row(kind, len(values), f"{sum(values):.3f}")
        total = sum(map(sum, times.values()))
        row("all", sum(map(len, times.values())), f"{total:.3f}")
        print("\nKernels may overlap: one begins while the one before it ends.")
        self.raw[f"{prepared.label}: kernels, ms"] = {k: [len(v), sum(v)] for k, v in times.items()}


def kind_of(kernel: str) -> str:
    """Say what kind of work a kernel does, by its name."""
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return "other"


SECTIONS: dict[str, Callable[[Benchmark], None]] = {
    "llama": Benchmark.llama,
    "gpt2": Benchmark.gpt2,
    "gpt2_half": Benchmark.gpt2_half,
    "uncompiled": Benchmark.uncompiled,
    "batch4": Benchmark.batch4,
    "batch16": Benchmark.batch16,
    "ragged": Benchmark.ragged,
}


def main() -> int:
    return run_torch_sections(
        SECTIONS,
        lambda is_quick, device: Benchmark(QUICK if is_quick else Effort(), device),
        about=__doc__,
        quick="tiny models and few tokens; no time means anything.",
        devices={"cuda": list(SECTIONS), "cpu": list(SECTIONS)},
    )


if __name__ == "__main__":
    raise SystemExit(main())
