"""Compare tinytorch.core with PyTorch eager: same weights, same threads, interleaved.

    python benchmarks/core_vs_torch.py [--backend NAME] [--only TEXT] [--json FILE] [--threads N]

Outputs (and, for training steps, the loss and the updated weights) are checked to be equal before
anything is timed. A ratio is our time over PyTorch's time: below 1 we are faster. Needs the `test`
extra.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", default="numpy")
parser.add_argument("--only", default="", help="run the cases whose name contains this")
parser.add_argument("--json", type=Path, help="write raw values here")
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
options = parser.parse_args()
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)  # before NumPy and PyTorch start their pools

import numpy as np
import torch
from interleaving import Ratio, Run, compare
from torch.nn import functional as F

from tinytorch.core import dispatch
from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT

CLASSES = 10


class TorchBlock(torch.nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, dim = x.shape
        h = self.norm1(x)
        q, k, v = (
            p(h).view(batch, time, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TorchGPT(torch.nn.Module):
    def __init__(self, vocab: int, dim: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = (
            torch.nn.Embedding(vocab, dim),
            torch.nn.Embedding(context, dim),
        )
        self.blocks = torch.nn.ModuleList(TorchBlock(dim, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


Pair = tuple[Module, torch.nn.Module]


def mlp() -> Pair:
    ours = Sequential(Linear(784, 256), ReLU(), Linear(256, 128), ReLU(), Linear(128, CLASSES))
    nn = torch.nn
    theirs = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )
    return copy_weights(ours, theirs)


def cnn() -> Pair:
    ours = Sequential(
        Conv2d(3, 16, 3, padding=1), ReLU(), MaxPool2d(2),
        Conv2d(16, 32, 3, padding=1), ReLU(), MaxPool2d(2),
        Flatten(), Linear(32 * 8 * 8, CLASSES),
    )  # fmt: skip
    nn = torch.nn
    theirs = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES),
    )  # fmt: skip
    return copy_weights(ours, theirs)


def gpt(vocab: int, dim: int, layers: int, heads: int) -> Pair:
    return copy_weights(
        GPT(vocab, dim, layers, heads, max_seq_len=128), TorchGPT(vocab, dim, layers, heads, 128)
    )


# Part of a name in our GPT, by the name in PyTorch's above.
OUR_NAMES = {
    "tokens": "token_embedding",
    "positions": "position_embedding",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "out": "attention.out_proj",
    "up": "mlp.layers.0",
    "down": "mlp.layers.2",
}


def copy_weights(ours: Module, theirs: torch.nn.Module) -> Pair:
    """Give PyTorch's model the weights of ours. Its linear layers hold the transposed matrix."""
    arrays = ours.state_dict()
    with torch.no_grad():
        for path, module in theirs.named_modules():
            for kind, parameter in module.named_parameters(recurse=False):
                parts = [OUR_NAMES.get(part, part) for part in path.split(".")]
                name = ".".join(["layers", *parts] if parts[0].isdigit() else parts)
                array = arrays[f"{name}.{kind}"]
                if isinstance(module, torch.nn.Linear) and kind == "weight":
                    array = array.T.copy()
                parameter.copy_(torch.from_numpy(array))
    return ours, theirs


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Pair]
    input_shape: tuple[int, ...]
    vocab: int | None = None
    training: bool = False
    is_cnn: bool = False


CASES = (
    Case("MLP forward, batch 1", mlp, (1, 784)),
    Case("MLP forward, batch 32", mlp, (32, 784)),
    Case("MLP training step, batch 32", mlp, (32, 784), training=True),
    Case("CNN forward, batch 8", cnn, (8, 3, 32, 32), is_cnn=True),
    Case("CNN forward, batch 32", cnn, (32, 3, 32, 32), is_cnn=True),
    Case("CNN training step, batch 8", cnn, (8, 3, 32, 32), training=True, is_cnn=True),
    Case("CNN training step, batch 32", cnn, (32, 3, 32, 32), training=True, is_cnn=True),
    Case("GPT d256 L4 forward, 128 tokens", lambda: gpt(1024, 256, 4, 4), (1, 128), 1024),
    Case(
        "GPT d256 L4 training step, 128 tokens",
        lambda: gpt(1024, 256, 4, 4), (1, 128), 1024, training=True,
    ),
    Case("GPT d768 L12 forward, 128 tokens", lambda: gpt(50257, 768, 12, 12), (1, 128), 50257),
)  # fmt: skip


def make_inputs(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if case.vocab is None:
        x = rng.standard_normal(case.input_shape).astype(np.float32)
        return x, rng.integers(0, CLASSES, len(x))
    return rng.integers(0, case.vocab, case.input_shape), rng.integers(
        0, case.vocab, case.input_shape
    )


def build_runs(case: Case, seed: int) -> tuple[Run, Run]:
    """Make both sides and check that they compute the same."""
    ours, theirs = case.build()
    x, y = make_inputs(case, seed)
    tensor, torch_x, torch_y = Tensor(x), torch.from_numpy(x), torch.from_numpy(y)
    run_ours, run_theirs = (
        _training_runs(ours, theirs, tensor, torch_x, y, torch_y)
        if case.training
        else _forward_runs(ours, theirs, tensor, torch_x)
    )
    for _ in range(3 if case.training else 1):
        _check_equal(run_ours().data, run_theirs().detach().numpy())
    return run_ours, run_theirs


def _forward_runs(
    ours: Module, theirs: torch.nn.Module, x: Tensor, torch_x: torch.Tensor
) -> tuple[Callable[[], Tensor], Callable[[], torch.Tensor]]:
    ours.eval()
    theirs.eval()

    def run_ours() -> Tensor:
        with no_grad():
            return ours(x)

    def run_theirs() -> torch.Tensor:
        with torch.no_grad():
            return theirs(torch_x)

    return run_ours, run_theirs


def _training_runs(
    ours: Module,
    theirs: torch.nn.Module,
    x: Tensor,
    torch_x: torch.Tensor,
    y: np.ndarray,
    torch_y: torch.Tensor,
) -> tuple[Callable[[], Tensor], Callable[[], torch.Tensor]]:
    """One step is: clear gradients, forward, cross entropy, backward, Adam."""
    optimizer, torch_optimizer = Adam(ours.parameters()), torch.optim.Adam(theirs.parameters())
    loss_of = CrossEntropyLoss()

    def run_ours() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(ours(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def run_theirs() -> torch.Tensor:
        torch_optimizer.zero_grad()
        logits = theirs(torch_x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch_y.reshape(-1))
        loss.backward()
        torch_optimizer.step()
        return loss

    return run_ours, run_theirs


def _check_equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    if not error < 1e-3:
        raise SystemExit(f"outputs differ by {error:.2e}: nothing is timed")


def peak_share(case: Case) -> float | None:
    """Give the peak of new memory in a forward pass, in units of the largest activation."""
    if case.training:
        return None
    ours, _ = case.build()
    ours.eval()
    x, _ = make_inputs(case, 0)
    largest = 0

    def note(call: dispatch.KernelCall) -> None:
        nonlocal largest
        largest = max(largest, call.outputs[0].nbytes)

    with no_grad():
        with dispatch.recording(note):
            output = ours(Tensor(x))
        assert output.creator is None
        del output
        tracemalloc.start()
        ours(Tensor(x))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak / largest


def main() -> None:
    torch.set_num_threads(options.threads)
    dispatch.set_backend(options.backend)
    print(f"backend {options.backend}, {options.threads} threads, NumPy {np.__version__}, "
          f"PyTorch {torch.__version__}, Python {platform.python_version()}")  # fmt: skip
    print(
        "| case | tinytorch | PyTorch | ratio | 96% interval | pairs | peak / largest activation |"
    )
    print("|---|---|---|---|---|---|---|")
    results: dict[str, Ratio] = {}
    for case in CASES:
        if options.only not in case.name:
            continue
        ratio = results[case.name] = compare(lambda seed, case=case: build_runs(case, seed))
        low, high = ratio.interval
        share = peak_share(case)
        print(
            f"| {case.name} | {ratio.candidate_s * 1e3:.3f} ms | {ratio.baseline_s * 1e3:.3f} ms "
            f"| {ratio.median:.2f} | {low:.2f} to {high:.2f} | {ratio.pairs} "
            f"| {'' if share is None else f'{share:.1f}'} |",
            flush=True,
        )
    logs = [math.log(ratio.median) for ratio in results.values()]
    print(f"\ngeometric mean: {math.exp(sum(logs) / len(logs)):.2f}")
    if options.json:
        raw = {name: ratio.values for name, ratio in results.items()}
        options.json.write_text(json.dumps({"backend": options.backend, "ratios": raw}, indent=1))


if __name__ == "__main__":
    main()
