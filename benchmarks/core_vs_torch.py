"""Compare tinytorch.core with PyTorch eager: same weights, same threads, interleaved.

    python benchmarks/core_vs_torch.py [--backend NAME] [--only TEXT] [--json FILE]

Outputs (for training steps: three losses in a row and the norms of all gradients) are checked to be
equal before anything is timed. A ratio is our time over PyTorch's time: below 1 we are faster. Both
use as many threads as the process may run on, or TINYTORCH_BENCHMARK_THREADS. The backend is the
compiled one where numba is installed; what is promised of it stands at the end, beside what was
found. Needs the `test` extra.
"""

from __future__ import annotations

import argparse
import json
import platform
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from interleaving import (
    REPLICATES,
    THREADS,
    Ratio,
    Run,
    Target,
    compare,
    geometric_mean,
    show_targets,
    side,
    summarise,
)

# isort: split
import numpy as np

from tinytorch.core import dispatch
from tinytorch.core.autograd import no_grad
from tinytorch.core.files import keep_freed_memory
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT

CLASSES = 10
CHECKED_STEPS = 2


def mlp(rng: np.random.Generator) -> Module:
    return Sequential(
        Linear(784, 256, rng=rng), ReLU(), Linear(256, 128, rng=rng), ReLU(),
        Linear(128, CLASSES, rng=rng),
    )  # fmt: skip


def cnn(rng: np.random.Generator) -> Module:
    return Sequential(
        Conv2d(3, 16, 3, padding=1, rng=rng), ReLU(), MaxPool2d(2),
        Conv2d(16, 32, 3, padding=1, rng=rng), ReLU(), MaxPool2d(2),
        Flatten(), Linear(32 * 8 * 8, CLASSES, rng=rng),
    )  # fmt: skip


SMALL_GPT = {"vocab": 1024, "dim": 256, "layers": 4, "heads": 4}
GPT2_SMALL = {"vocab": 50257, "dim": 768, "layers": 12, "heads": 12}


def gpt(rng: np.random.Generator, *, vocab: int, dim: int, layers: int, heads: int) -> Module:
    return GPT(vocab, dim, layers, heads, max_seq_len=128, rng=rng)


@dataclass(frozen=True)
class Case:
    name: str
    ours: Callable[[np.random.Generator], Module]
    theirs: str  # its twin among torch_models.MODELS
    input_shape: tuple[int, ...]
    vocab: int | None = None
    training: bool = False


small_gpt = partial(gpt, **SMALL_GPT), "small_gpt"
gpt2_small = partial(gpt, **GPT2_SMALL), "gpt2_small"
CASES = (
    Case("MLP forward, batch 1", mlp, "mlp", (1, 784)),
    Case("MLP forward, batch 32", mlp, "mlp", (32, 784)),
    Case("MLP training step, batch 32", mlp, "mlp", (32, 784), training=True),
    Case("CNN forward, batch 8", cnn, "cnn", (8, 3, 32, 32)),
    Case("CNN forward, batch 32", cnn, "cnn", (32, 3, 32, 32)),
    Case("CNN training step, batch 8", cnn, "cnn", (8, 3, 32, 32), training=True),
    Case("CNN training step, batch 32", cnn, "cnn", (32, 3, 32, 32), training=True),
    Case("GPT d256 L4 forward, 128 tokens", *small_gpt, (1, 128), 1024),
    Case("GPT d256 L4 training step, 128 tokens", *small_gpt, (1, 128), 1024, training=True),
    Case("GPT d768 L12 forward, 128 tokens", *gpt2_small, (1, 128), 50257),
)


def make_inputs(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if case.vocab is not None:
        x, y = rng.integers(0, case.vocab, (2, *case.input_shape))
        return x, y
    x = rng.standard_normal(case.input_shape).astype(np.float32)
    return x, rng.integers(0, CLASSES, len(x))


def build_ours(
    case: Case, seed: int, keep: bool, backend: str
) -> tuple[Run, Callable[[], np.ndarray]]:
    if keep:
        keep_freed_memory()
    dispatch.set_backend(backend)
    rng = np.random.default_rng(seed)
    model = case.ours(rng)
    x, y = make_inputs(case, rng)
    tensor = Tensor(x)
    if not case.training:
        model.eval()

        def forward() -> Tensor:
            with no_grad():
                return model(tensor)

        return forward, lambda: forward().data
    optimizer, loss_of = Adam(model.parameters()), CrossEntropyLoss()

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(tensor), y)
        loss.backward()
        optimizer.step()
        return loss

    def check() -> np.ndarray:
        losses = [step().item()]
        norms = sorted(float(np.linalg.norm(p.grad)) for p in model.parameters())
        return np.array(losses + [step().item() for _ in range(CHECKED_STEPS)] + norms)

    return step, check


def build_theirs(case: Case, seed: int, keep: bool) -> tuple[Run, Callable[[], np.ndarray]]:
    import torch  # never on our side, where its threads could be in the way
    from torch.nn import functional as F
    from torch_models import MODELS, copy_weights

    if keep:
        keep_freed_memory()
    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(seed)
    model = MODELS[case.theirs]()
    copy_weights(case.ours(rng), model)
    x, y = (torch.from_numpy(array) for array in make_inputs(case, rng))
    if not case.training:
        model.eval()

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return model(x)

        return forward, lambda: forward().numpy()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    def check() -> np.ndarray:
        losses = [step().item()]
        norms = sorted(float(p.grad.norm()) for p in model.parameters())
        return np.array(losses + [step().item() for _ in range(CHECKED_STEPS)] + norms)

    return step, check


def check_equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    if not error < 1e-3:
        raise SystemExit(f"outputs differ by {error:.2e}: nothing is timed")


def peak_share(case: Case) -> float | None:
    """Give the peak of new memory in a forward pass, in units of the largest activation.

    What compiled loops allocate for themselves, such as packed panels of a matrix, is not seen.
    """
    if case.training:
        return None
    rng = np.random.default_rng(0)
    model = case.ours(rng)
    x = Tensor(make_inputs(case, rng)[0])
    calls: list[dispatch.KernelCall] = []
    with no_grad():
        with dispatch.recording(calls.append):
            model.eval()(x)
        tracemalloc.start()
        model(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    outputs = (call.outputs[0] for call in calls)
    return peak / max(output.nbytes for output in outputs if not output.is_view)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", help="numba where it is installed, unless you name another")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--json", type=Path, help="write raw values here")
    parser.add_argument(
        "--keep-freed-memory", action="store_true", help="on both sides (tinytorch.core.files)"
    )
    options = parser.parse_args()
    if options.backend:
        dispatch.set_backend(options.backend)
    options.backend = dispatch.active_backend().name
    print(
        f"backend {options.backend}, {THREADS} threads, NumPy {np.__version__}, "
        f"PyTorch {version('torch')}, Python {platform.python_version()}\n"
    )
    print("| case | tinytorch | PyTorch | ratio | 96% interval | pairs | peak / activation |")
    print("|---|---|---|---|---|---|---|")
    results: dict[str, Ratio] = {}
    with side(build_ours) as ours, side(build_theirs) as theirs:
        for case in CASES:
            if options.only not in case.name:
                continue
            replicates = []
            for seed in range(REPLICATES):
                ours.start(case, seed, options.keep_freed_memory, options.backend)
                theirs.start(case, seed, options.keep_freed_memory)
                check_equal(ours.built(), theirs.built())
                replicates.append(list(compare(ours, theirs)))
            results[case.name] = summarise(replicates)
            show(case, results[case.name])
    if not results:
        raise SystemExit(f"no case has {options.only!r} in its name")
    medians = {name: ratio.median for name, ratio in results.items()}
    print(f"\ngeometric mean: {geometric_mean(medians.values()):.2f}")
    if options.backend == "numba":
        show_targets(compiled_targets(medians))
    if options.json:
        raw = {name: ratio.values for name, ratio in results.items()}
        setting = {"backend": options.backend, "threads": THREADS, "machine": platform.processor(),
                   "numpy": np.__version__, "torch": version("torch")}  # fmt: skip
        options.json.write_text(json.dumps({**setting, "ratios": raw}, indent=1))


def compiled_targets(medians: dict[str, float]) -> list[Target]:
    """Give what the compiled backend promises; a mean or largest value needs all the cases."""
    is_whole = len(medians) == len(CASES)
    return [
        Target("geometric mean", 0.9, geometric_mean(medians.values()) if is_whole else None),
        *(
            Target(case.name, 0.75, medians.get(case.name))
            for case in CASES
            if case.name.startswith("GPT") and not case.training
        ),
        Target("every case", 1.5, max(medians.values()) if is_whole else None),
    ]


def show(case: Case, ratio: Ratio) -> None:
    low, high = ratio.interval
    share = peak_share(case)
    print(
        f"| {case.name} | {ratio.candidate_s * 1e3:.3f} ms | {ratio.baseline_s * 1e3:.3f} ms "
        f"| {ratio.median:.2f} | {low:.2f} to {high:.2f} | {ratio.pairs} "
        f"| {'' if share is None else f'{share:.1f}'} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
