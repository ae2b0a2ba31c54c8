"""Whether `optimize` holds its time budget: wall time, and what was tried in it.

    python benchmarks/budgets.py [--only NAME ...] [--budget S ...] [--verbose] [--json FILE]

The GPT and the CNN of the zoo; and with PyTorch and random weights: an encoder like BERT with a
pooled embedding, an LSTM, a CNN for audio and attention written by hand, which projects each head
by itself. The wall time is that of `optimize`, from its profile to the model that it returns; a
model is made and PyTorch imported before. A budget holds if the wall time exceeds it by at most 20%
plus what the longest attempt took to plan and apply (compiling, most of all).

Nothing is resumed or kept. Needs torch and transformers but for the zoo.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from generation_tables import header, row

from tinytorch import Workload, load_workload
from tinytorch.tuning.attempt import DROPPED, NOT_TRIED, Attempt
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.optimize import optimize

ALLOWED = 1.2
COLUMNS = (
    "model",
    "budget",
    "wall time",
    "longest set-up",
    "holds",
    "compared",
    "dropped",
    "not tried",
    "recommended",
)


def main() -> int:
    options = _options()
    header(*COLUMNS)
    raw: list[dict[str, Any]] = []
    failed = 0
    for name in options.only:
        for budget_s in options.budget:
            workload = CASES[name]()
            started = perf_counter()
            hear = _teller(started) if options.verbose else None
            found = optimize(workload, budget_s=budget_s, on_attempt=hear)
            wall_s = perf_counter() - started
            failed += not holds(found, wall_s)
            row(*_cells(found, wall_s))
            sys.stdout.flush()
            raw.append({"model": name, "wall_s": wall_s, "optimization": found.to_dict()})
            if options.json:
                options.json.write_text(json.dumps(raw), "utf-8")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES, metavar="NAME")
    parser.add_argument("--budget", nargs="+", type=float, default=[15, 30, 60], metavar="S")
    parser.add_argument("--verbose", action="store_true", help="each attempt as it is finished")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    return parser.parse_args()


def holds(found: Optimization, wall_s: float) -> bool:
    """Return whether a budget was held, but for one attempt's set-up and a fifth."""
    return wall_s <= ALLOWED * found.settings.budget_s + _longest_setup_s(found)


def _longest_setup_s(found: Optimization) -> float:
    every = (*found.attempts, *found.confirmations)
    return max((each.setup_s for each in every), default=0.0)


def _cells(found: Optimization, wall_s: float) -> tuple[str, ...]:
    best = found.recommended
    outcomes = [each.outcome for each in found.attempts]
    said = "nothing"
    if best is not None and best.comparison is not None:
        said = f"{best.name}: {best.comparison.speedup:.2f}x"
    return (
        found.name,
        f"{found.settings.budget_s:g} s",
        f"{wall_s:.1f} s",
        f"{_longest_setup_s(found):.1f} s",
        "yes" if holds(found, wall_s) else "no",
        str(sum(each.comparison is not None for each in found.attempts)),
        str(outcomes.count(DROPPED)),
        ", ".join(x.name for x in found.attempts if x.outcome == NOT_TRIED and x.lacked_time)
        or "-",
        said,
    )


def _teller(started: float) -> Callable[[Attempt], None]:
    def tell(attempt: Attempt) -> None:
        timed = attempt.comparison.seconds_used if attempt.comparison else 0.0
        print(
            f"{perf_counter() - started:6.1f} s  {attempt.name}: {attempt.outcome} in "
            f"{attempt.seconds:.1f} s, set up {attempt.setup_s:.1f} s, timed {timed:.1f} s; "
            f"{attempt.reason}",
            file=sys.stderr,
            flush=True,
        )

    return tell


# ---------------------------------------------------------------- models


def embeddings() -> Workload:
    """Make an encoder like BERT of 6 layers and 384 channels, whose embeddings are pooled."""
    import torch
    import transformers

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    torch.manual_seed(0)
    config = transformers.BertConfig(**sizes, intermediate_size=1536)
    ids = torch.randint(5, 999, (8, 64))
    mask = torch.ones_like(ids)
    encoder = transformers.BertModel(config).eval()
    keywords = {"input_ids": ids, "attention_mask": mask}
    return Workload("encoder, 8 x 64", encoder, (), keywords=keywords)


def lstm() -> Workload:
    """Make an LSTM of 2 layers with a linear layer at its end."""
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2000, 128)
            self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
            self.out = nn.Linear(256, 20)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.lstm(self.embed(ids))
            return self.out(hidden)

    torch.manual_seed(0)
    return Workload("LSTM, 4 x 100", Tagger().eval(), (torch.randint(0, 2000, (4, 100)),))


def audio() -> Workload:
    """Make a CNN of six layers over windows of sound, with batch norms."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = (1, 64, 32, 32, 32, 64, 128)
    for place, (before, after) in enumerate(pairwise(channels)):
        stride, width = (4, 65) if place == 0 else (1, 33)
        layers += [nn.Conv1d(before, after, width, stride, width // 2), nn.ReLU()]
        layers += [nn.BatchNorm1d(after), nn.MaxPool1d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 360)).eval()
    return Workload("audio CNN, 32 windows", model, (torch.randn(32, 1, 1024),))


def attention() -> Workload:
    """Make a model of 4 layers that projects queries, keys and values once for each head."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(256, 256) for _ in range(3))
            self.out = nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = []
            for head in range(8):
                part = slice(32 * head, 32 * head + 32)
                q, k, v = (make(x)[..., part] for make in (self.query, self.key, self.value))
                scores = q @ k.transpose(-2, -1) / 32**0.5
                heads.append(scores.softmax(-1) @ v)
            return x + self.out(torch.cat(heads, -1))

    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(4))).eval()
    return Workload("attention by hand, 4 x 128", model, (torch.randn(4, 128, 256),))


CASES: dict[str, Callable[[], Workload]] = {
    "gpt": lambda: load_workload("gpt"),
    "cnn": lambda: load_workload("cnn"),
    "encoder": embeddings,
    "lstm": lstm,
    "audio": audio,
    "attention": attention,
}

if __name__ == "__main__":
    raise SystemExit(main())
