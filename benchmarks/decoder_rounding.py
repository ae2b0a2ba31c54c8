"""Do scaled weights lose less than plain rounding at equal bytes? Perplexity of small decoders.

    python benchmarks/decoder_rounding.py [--only SHAPE ...] [--steps N] [--csv FILE]

Decoders of the shapes of GPT-2, Llama and Qwen2 are trained for some minutes on the novel that the
package ships, letter by letter, and judged on the last quarter, which they never saw. Each is
rounded to INT8 and INT4 weights, plainly (`Quantize`) and scaled by activations before
(`ActivationAwareQuantize`, with 16 passages of the training text as calibration data). A ratio of
perplexities is exp of the mean difference of the passages' log-likelihoods, with a 95% interval
over passages.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers

from tinytorch import Workload
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.zoo import load_corpus, split_corpus
from tinytorch.transforms.activation_aware import ActivationAwareQuantize
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.quantize import Quantize

LENGTH, BATCH, RATE = 128, 16, 2e-3
PASSAGES, CALIBRATION = 64, 16
WIDTH, LAYERS, HEADS, INNER = 96, 3, 4, 288
NORMAL = 1.96
SIDES: dict[str, tuple[int, Transform]] = {
    "INT8": (8, Quantize(mode="weight_only")),
    "INT8 scaled": (8, ActivationAwareQuantize(bits=8)),
    "INT4": (4, Quantize(mode="weight_only", bits=4)),
    "INT4 scaled": (4, ActivationAwareQuantize(bits=4)),
}
COLUMNS = ("shape", "weights", "bytes", "perplexity", "over_float", "low", "high", "over_plain")


def shapes(letters: int) -> dict[str, Any]:
    """Return the configurations, by the name of the shape."""
    common = {"vocab_size": letters, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
    }
    gpt2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
    return {
        "gpt2": transformers.GPT2Config(**common, **gpt2),
        "llama": transformers.LlamaConfig(**common, **sizes),
        "qwen2": transformers.Qwen2Config(**common, **sizes),
    }


def main() -> int:
    options = _options()
    seen, held_out = split_corpus(load_corpus(), 0.25)
    letters = sorted(set(seen) | set(held_out))
    known = {letter: number for number, letter in enumerate(letters)}
    training, judging = (torch.tensor([known[x] for x in text]) for text in (seen, held_out))
    rows: list[dict[str, Any]] = []
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name, config in shapes(len(letters)).items():
        if options.only and name not in options.only:
            continue
        model = trained(config, training, options.steps)
        passages = _passages(judging, PASSAGES)
        data = [(each,) for each in _passages(training, CALIBRATION).split(4)]
        workload = Workload(name, model, (passages[:1],), data)
        for row in compared(workload, passages):
            rows.append(row)
            print("| " + " | ".join(str(row[each]) for each in COLUMNS) + " |", flush=True)
        if options.csv:
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="SHAPE")
    parser.add_argument("--steps", type=int, default=250, metavar="N")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    return parser.parse_args()


def trained(config: Any, tokens: torch.Tensor, steps: int) -> Any:
    """Return a model trained for so many steps on windows of the text, drawn with a fixed seed."""
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    started = perf_counter()
    for step in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
        ids = torch.stack([tokens[at : at + LENGTH] for at in starts])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
        if step % 25 == 24:
            spent = perf_counter() - started
            print(f"step {step + 1}: loss {loss.item():.3f}, {spent:.0f} s", file=sys.stderr)
    return model.eval().requires_grad_(False)


def _passages(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Return passages (count, LENGTH) spread evenly over a text."""
    starts = np.linspace(0, len(tokens) - LENGTH, count).astype(int)
    return torch.stack([tokens[at : at + LENGTH] for at in starts])


def compared(workload: Workload, passages: torch.Tensor) -> list[dict[str, Any]]:
    """Return a row for the model in floats and each way of rounding it."""
    held = TorchAdapter().held_bytes
    exact = likelihoods(workload.model, passages)
    rows = [_row(workload.name, "float32", held(workload.model), exact, exact, exact)]
    plain: dict[int, Any] = {}
    for name, (bits, transform) in SIDES.items():
        model = transform.apply(workload, transform.plan(workload))
        found = likelihoods(model, passages)
        rows.append(
            _row(workload.name, name, held(model), found, exact, plain.setdefault(bits, found))
        )
    return rows


def likelihoods(model: Any, passages: torch.Tensor) -> Any:
    """Return the mean log-likelihood of the letters of each passage."""
    found = []
    with torch.no_grad():
        for ids in passages.split(8):
            scores = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
            found.append(scores.gather(-1, ids[:, 1:, None]).squeeze(-1).mean(1))
    return torch.cat(found).double().numpy()


def _row(shape: str, name: str, nbytes: int, found: Any, exact: Any, plain: Any) -> dict[str, Any]:
    over_float, low, high = _ratio(exact, found)
    return {
        "shape": shape,
        "weights": name,
        "bytes": nbytes,
        "perplexity": f"{float(np.exp(-found.mean())):.4f}",
        "over_float": over_float,
        "low": low,
        "high": high,
        "over_plain": _ratio(plain, found)[0],
    }


def _ratio(before: Any, after: Any) -> list[str]:
    """Return the ratio of perplexities with its interval."""
    loss = before - after
    reach = NORMAL * float(loss.std(ddof=1)) / len(loss) ** 0.5
    return [f"{float(np.exp(loss.mean() + by)):.5f}" for by in (0.0, -reach, reach)]


if __name__ == "__main__":
    sys.exit(main())
