"""Do the tests notice when a promise is broken on purpose? Twenty-five sabotages, all to be caught.

    python benchmarks/sabotages.py [--only WORDS] [--json FILE]
    python benchmarks/sabotages.py --make       # look for tests that catch each of them

Each sabotage is a decorator that is put on a definition, found by its name wherever it stands, in a
process of its own (forked_tests.py). The tests that judge it are in sabotages.json; where their
file is gone they are found by name. The exit code is 1 if one is not caught, or cannot be applied.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from code_points import Code, Definition
from forked_tests import ChangedModules, Job, TestIndex, check_unchanged, preload, run_jobs

FILE = Path(__file__).resolve().parent / "sabotages.json"
MOST_TESTS = 6
LIMIT_S = 120.0

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Sabotage:
    """What is broken: decorators for definitions, and where tests for it may be found."""

    name: str
    changes: dict[str, Decorator]
    searched: tuple[str, ...]


def changing(change: Callable[..., Any]) -> Decorator:
    """Make a decorator of a function that is called with the original and its arguments."""

    def decorator(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def changed(*arguments: Any, **settings: Any) -> Any:
            return change(original, *arguments, **settings)

        return changed

    return decorator


def with_global(name: str, replacement: Callable[..., Any]) -> Decorator:
    """Let a function see another function under a name of its module, while it runs."""

    def change(original: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        names = original.__globals__  # type: ignore[attr-defined]
        real = names[name]
        names[name] = partial(replacement, real)
        try:
            return original(*arguments, **settings)
        finally:
            names[name] = real

    return changing(change)


# --- What is broken ---------------------------------------------------------------------------


def zero_costs(original: Any, *arguments: Any) -> Any:
    return dataclasses.replace(original(*arguments), macs=0, causal_macs=0)


def constant_samples(original: Any, *arguments: Any, **settings: Any) -> Any:
    found = original(*arguments, **settings)
    return dataclasses.replace(found, values=(0.001,) * len(found.values))


def identity(original: Any, array: Any, *arguments: Any, **settings: Any) -> Any:
    import numpy as np

    found = original(array, *arguments, **settings)
    return dataclasses.replace(
        found,
        values=np.asarray(array, np.float32),
        scale=np.ones_like(found.scale),
        zero_point=np.zeros_like(found.zero_point),
    )


def five_bits(original: Any, bits: int = 8, symmetric: bool = False) -> Any:
    return original(bits, symmetric) if bits != 8 else (-15 if symmetric else -16, 15)


def without_zero_point(original: Any, self: Any) -> Any:
    return original(dataclasses.replace(self, zero_point=0 * self.zero_point))


def keep_floats(original: Any, self: Any, linear: Any, *arguments: Any, **settings: Any) -> None:
    original(self, linear, *arguments, **settings)
    bias = None if linear.bias is None else linear.bias.data.copy()
    vars(self)["kept_floats"] = (linear.weight.data.copy(), bias)


def compute_with_floats(original: Any, self: Any, x: Any) -> Any:
    if "kept_floats" not in vars(self):
        return original(self, x)
    weight, bias = self.kept_floats
    product = x.data @ weight
    return type(x)(product if bias is None else product + bias)


def random_scores(original: Any, weight: Any, *arguments: Any, **settings: Any) -> Any:
    import numpy as np

    found = original(weight, *arguments, **settings)
    drawn = np.random.default_rng(0).random(found.shape).astype(found.dtype)
    return np.where(found < 0, found, drawn)


def one_output(real: Any, norms: Any, count: int) -> Any:
    return real(norms, min(count, 1))


def rectified(original: Any, x: Any, *arguments: Any, **settings: Any) -> Any:
    import numpy as np

    original(x, *arguments, **settings)
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else type(x)(np.maximum(x.data, 0))


def stand_still(original: Any, self: Any) -> None:
    position = self.seq_pos
    original(self)
    self.seq_pos = position


def reset_once(original: Any, self: Any, *arguments: Any) -> None:
    if not hasattr(self, "seq_pos"):
        original(self, *arguments)


def overflow(original: Any, self: Any, layer: int, key: Any, value: Any) -> Any:
    if self.seq_pos + key.shape[2] > self.max_seq_len:
        return self._keys[layer], self._values[layer]
    return original(self, layer, key, value)


def constant_turn(original: Any, self: Any, name: str) -> None:
    original(self, name)
    self.values[name][-1] = 0.001


def nine_tenths(original: Any, *arguments: Any) -> Any:
    found = original(*arguments)
    return dataclasses.replace(found, values=[0.9] * len(found.values))


def upside_down(original: Any, *arguments: Any) -> Any:
    found = original(*arguments)
    return type(found)(1 / found.value, 1 / found.high, 1 / found.low)


def swapped(original: Any, first: Any, second: Any) -> Any:
    return original(second, first)


def first_value(original: Any, self: Any, *arguments: Any, **settings: Any) -> Any:
    found = original(self, *arguments, **settings)
    return dataclasses.replace(found, low=self.values[0], high=self.values[0])


def sees_all(real: Any, kind: str, *arrays: Any, **settings: Any) -> Any:
    return real(
        kind, *arrays, **({**settings, "causal": False} if kind == "attention" else settings)
    )


def only_past(original: Any, self: Any, layer: int, key: Any, value: Any) -> Any:
    keys, values = original(self, layer, key, value)
    if self.seq_pos == 0 or key.shape[2] > 1:
        return keys, values
    return keys[:, :, :-1], values[:, :, :-1]


def last_block(original: Any, self: Any, *arguments: Any, **settings: Any) -> Any:
    blocks = self.blocks
    vars(self)["blocks"] = [blocks[-1]] * len(blocks)
    try:
        return original(self, *arguments, **settings)
    finally:
        vars(self)["blocks"] = blocks


def three_times(original: Any, *arguments: Any, backward: bool = False, **settings: Any) -> int:
    return original(*arguments, **settings) * (3 if backward else 1)


def twice_forward(original: Any, self: Any, phase: str) -> int:
    return 2 * original(self, "forward") if phase == "backward" else original(self, phase)


def twice_the_inputs(original: Any, self: Any) -> int:
    original(self)
    return 2 * sum(each.nbytes for each in self.allocations if each.category == "inputs")


def bound_by_time(original: Any, self: Any, flops: int, moved: int, seconds: float) -> Any:
    found = original(self, flops, moved, seconds)
    if found is None:
        return None
    return dataclasses.replace(found, intensity=found.ridge * (2.0 if seconds > 1e-3 else 0.5))


LEFT_OPEN: list[Any] = []


def not_put_back(original: Any, *arguments: Any) -> Iterator[None]:
    block = original(*arguments)
    next(block)
    try:
        yield
    except BaseException:
        LEFT_OPEN.append(block)
        raise
    next(block, None)


def collector_off(original: Any) -> Iterator[None]:
    yield from original()
    gc.disable()


def faster_if_it_raises(original: Any, *arguments: Any, **settings: Any) -> Any:
    try:
        return original(*arguments, **settings)
    except Exception:
        names = original.__globals__
        pace = names["Pace"]((1, 1), 1, 0, 0.001, (0.001, 0.001))
        made_up = tuple(names["Round"]((1e-3 + at * 1e-6,), (5e-4,)) for at in range(12))
        return names["TimedRounds"](made_up, 0.05, pace, 1.0, ())


PROFILING = ("tests/profiling", "tests/models")
QUANTIZATION = (
    "tests/formats/test_affine.py",
    "tests/transforms/quantize/test_quantized_linear.py",
)
COMPRESSION = tuple(
    f"tests/transforms/test_{each}.py"
    for each in ("contract", "model_compressor", "prune", "pruning_plan", "sparsity")
)
CACHE = (
    *("tests/core/test_kv_cache.py", "tests/core/test_generation.py"),
    *("tests/transforms/test_attached_cache.py", "tests/transforms/test_cached_attention.py"),
)
BENCHMARKING = ("tests/benchmarking",)
COMPARISON = ("tests/comparison",)
TIMING = ("tests/measure", "tests/profiling/test_timer.py")
SABOTAGES = [
    Sabotage("FLOP counts of zero", {"Rule.cost_of": changing(zero_costs)}, PROFILING),
    Sabotage(
        "constant latency",
        {"measure_time": changing(constant_samples)},
        (*TIMING, "tests/profiling/test_contract.py", "tests/profiling/test_profiler.py"),
    ),
    Sabotage("quantization is the identity", {"quantize_array": changing(identity)}, QUANTIZATION),
    Sabotage("quantization has five bits", {"value_limits": changing(five_bits)}, QUANTIZATION),
    Sabotage(
        "quantization ignores the zero point",
        {"QuantizedArray.dequantize": changing(without_zero_point)},
        QUANTIZATION,
    ),
    Sabotage(
        "float32 behind a quantized layer",
        {
            "QuantizedLinear.__init__": changing(keep_floats),
            "QuantizedProduct._compute": changing(compute_with_floats),
        },
        QUANTIZATION,
    ),
    Sabotage(
        "random instead of magnitude pruning",
        {"weight_scores": changing(random_scores)},
        COMPRESSION,
    ),
    Sabotage(
        "structured pruning of one column only",
        {"structured_prune": with_global("smallest", one_output)},
        COMPRESSION,
    ),
    Sabotage(
        "ReLU as GELU",
        {"fused_gelu": changing(rectified), "gelu": changing(rectified)},
        ("tests/transforms/test_classic_kernels.py", "tests/core/test_activations.py"),
    ),
    Sabotage("a cache that never advances", {"KVCache.advance": changing(stand_still)}, CACHE),
    Sabotage("a reset that does not", {"KVCache.reset": changing(reset_once)}, CACHE),
    Sabotage("overflow unchecked", {"KVCache.extend": changing(overflow)}, CACHE),
    Sabotage(
        "constant benchmark values", {"_Tally.take_turn": changing(constant_turn)}, BENCHMARKING
    ),
    Sabotage("accuracy always 0.9", {"Benchmark._accuracy": changing(nine_tenths)}, BENCHMARKING),
    Sabotage(
        "speedup turned over",
        {"estimate_ratio": changing(upside_down), "ratio_interval": changing(swapped)},
        (*COMPARISON, *BENCHMARKING),
    ),
    Sabotage(
        "an interval from the first value only",
        {"Samples.median_interval": changing(first_value)},
        ("tests/measure", *BENCHMARKING),
    ),
    Sabotage(
        "the causal mask dropped in prefill",
        {"MultiHeadAttention._attend_to_past": with_global("run", sees_all)},
        CACHE,
    ),
    Sabotage("the current token left out", {"KVCache.extend": changing(only_past)}, CACHE),
    Sabotage(
        "the last block's weights in all blocks",
        {"GPT.forward_with_cache": changing(last_block)},
        CACHE,
    ),
    Sabotage(
        "backward taken as twice forward",
        {"count_flops": changing(three_times), "Profile.macs_in": changing(twice_forward)},
        PROFILING,
    ),
    Sabotage(
        "activations as twice the input",
        {"MemoryTimeline.peak_activation_bytes": changing(twice_the_inputs)},
        PROFILING,
    ),
    Sabotage("bounds by milliseconds", {"Profile._bound": changing(bound_by_time)}, PROFILING),
    Sabotage(
        "a patched forward left after an exception",
        {"wrapping_layers": changing(not_put_back)},
        ("tests/models/test_layer_watch.py", "tests/models/test_core.py", *PROFILING),
    ),
    Sabotage("garbage collection left off", {"gc_paused": changing(collector_off)}, TIMING),
    Sabotage(
        "faster when measuring raises",
        {"time_until_known": changing(faster_if_it_raises)},
        COMPARISON,
    ),
]


# --- Running ----------------------------------------------------------------------------------


class MissingDefinition(Exception):
    """A definition that a sabotage needs is not there under its name."""


def prepared(sabotage: Sabotage, code: Code) -> Callable[[], None]:
    """Return what applies a sabotage in a fork, or raise where a definition is missing."""
    places: dict[str, list[Definition]] = {}
    for name in sabotage.changes:
        places[name] = [each for each in code.definitions.get(name, []) if not each.is_table]
        # The backends define a kernel under one name; whatever else has two is a mistake here.
        if not places[name] or (len(places[name]) > 1 and "." in name):
            raise MissingDefinition(f"{name}: {len(places[name])} definitions")
    return partial(_apply, sabotage, places)


def _apply(sabotage: Sabotage, places: dict[str, list[Definition]]) -> None:
    trees: dict[Path, tuple[str, ast.Module]] = {}
    for name, found in places.items():
        for place in found:
            word = f"_sabotage_{len(vars(builtins))}"
            setattr(builtins, word, sabotage.changes[name])
            empty = (place.module, ast.parse(place.file.read_text("utf-8")))
            _, tree = trees.setdefault(place.file, empty)
            _decorate(tree, name.split("."), word)
    changed = [(name, file, tree) for file, (name, tree) in trees.items()]
    ChangedModules(changed).install()


def _decorate(tree: ast.AST, path: list[str], word: str) -> None:
    """Put a decorator right above a function, below those that it has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == path[0]:
            if len(path) > 1:
                _decorate(node, path[1:], word)
            elif isinstance(node, ast.FunctionDef):
                node.decorator_list.append(
                    ast.copy_location(ast.Name(word, ast.Load()), node.body[0])
                )


def main() -> int:
    """Run the sabotages, or look for tests that catch them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--only", default="", metavar="WORDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    chosen = [each for each in SABOTAGES if options.only in each.name]
    preload()
    if options.make:
        make(chosen)
    states = run(chosen)
    for sabotage in chosen:
        print(f"{states[sabotage.name]:10} {sabotage.name}")
    if options.json:
        options.json.write_text(json.dumps(states, indent=1) + "\n", "utf-8")
    return 0 if all(state.startswith("caught") for state in states.values()) else 1


def run(chosen: list[Sabotage]) -> dict[str, str]:
    """Return what became of each sabotage: caught, or why not."""
    code, index = Code(), TestIndex()
    kept = json.loads(FILE.read_text("utf-8"))
    tests = {
        each.name: [found for test in kept.get(each.name, []) for found in index.find(test)]
        for each in chosen
    }
    passing = check_unchanged([test for some in tests.values() for test in some])
    states: dict[str, str] = {}
    jobs = []
    for sabotage in chosen:
        selected = tuple(test for test in tests[sabotage.name] if passing[test])
        try:
            change = prepared(sabotage, code)
        except MissingDefinition as error:
            states[sabotage.name] = f"gone ({error})"
            continue
        states[sabotage.name] = "invalid (no test of it passes without a change)"
        if selected:
            jobs.append(Job(sabotage.name, selected, change, LIMIT_S))
    for outcome in run_jobs(jobs):
        states[outcome.job.name] = "caught" if outcome.failed else "NOT CAUGHT"
    return states


def make(chosen: list[Sabotage]) -> None:
    """Run all tests where a sabotage should be seen; keep some of those that fail, per file."""
    code = Code()
    kept = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    jobs = [
        Job(each.name, each.searched, prepared(each, code), 900, stops_early=False)
        for each in chosen
    ]
    for outcome in run_jobs(jobs):
        kept[outcome.job.name] = _some_of_each_file(outcome.failed)
        print(f"{len(outcome.failed):4} tests fail: {outcome.job.name}", file=sys.stderr)
        if not outcome.failed:
            print(outcome.shown[-2000:], file=sys.stderr)
    passing = check_unchanged([test for some in kept.values() for test in some])
    kept = {name: [test for test in some if passing[test]] for name, some in kept.items()}
    FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")


def _some_of_each_file(failed: list[str]) -> list[str]:
    """Return a few tests: one of each file, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranked = []
    for test in failed:
        path = test.partition("::")[0]
        seen[path] = seen.get(path, 0) + 1
        ranked.append((seen[path], test))
    return [test for _, test in sorted(ranked)[:MOST_TESTS]]


if __name__ == "__main__":
    sys.exit(main())
