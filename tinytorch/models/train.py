"""Train the models of the zoo: ``python -m tinytorch.models.train [mlp cnn gpt]``.

Without ``--output`` the weights of the package itself are replaced. The same seed, machine, number
of threads and backend give the same weights bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.dispatch import active_backend
from tinytorch.core.files import keep_freed_memory
from tinytorch.core.layers import Seed
from tinytorch.core.module import Module
from tinytorch.core.optimizers import AdamW
from tinytorch.core.training import CosineSchedule, History, Trainer
from tinytorch.models import zoo
from tinytorch.models.workload import Scores


@dataclass(frozen=True)
class Recipe:
    """How a model of the zoo is made."""

    build: Callable[[Seed], Module]
    load_data: Callable[[bool], TensorDataset]
    score: Callable[[Module, TensorDataset], Scores]
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    clip_norm: float | None = None


RECIPES = {
    "mlp": Recipe(
        build=zoo.build_mlp,
        load_data=lambda held_out: zoo.digit_data(held_out=held_out, flat=True),
        score=zoo.is_correct,
        epochs=10,
        batch_size=64,
        lr=2e-3,
        weight_decay=0.01,
    ),
    "cnn": Recipe(
        build=zoo.build_cnn,
        load_data=lambda held_out: zoo.digit_data(held_out=held_out, flat=False),
        score=zoo.is_correct,
        epochs=5,
        batch_size=64,
        lr=2e-3,
        weight_decay=0.01,
    ),
    "gpt": Recipe(
        build=zoo.build_gpt,
        load_data=lambda held_out: zoo.text_data(held_out=held_out),
        score=zoo.log_likelihood,
        epochs=5,
        batch_size=32,
        lr=3e-3,
        weight_decay=0.1,
        clip_norm=1.0,
    ),
}


def train_model(
    name: str,
    *,
    seed: int = 0,
    steps: int | None = None,
) -> tuple[Module, History]:
    """Train a model of the zoo by its recipe; `steps` cuts it short (and the schedule with it)."""
    recipe = RECIPES[name]
    data = recipe.load_data(False)
    if steps is not None:
        order = np.random.default_rng(seed).permutation(len(data))[: steps * recipe.batch_size]
        data = TensorDataset(*data[order])
    loader = DataLoader(data, recipe.batch_size, shuffle=True, seed=seed, drop_last=True)
    epochs = recipe.epochs if steps is None else 1
    total = epochs * len(loader)
    model = recipe.build(seed)
    trainer = Trainer(
        model,
        optimizer=AdamW(model.parameters(), weight_decay=recipe.weight_decay),
        schedule=CosineSchedule(recipe.lr, total, warmup=min(100, total // 10)),
        clip_norm=recipe.clip_norm,
    )
    history = trainer.fit(loader, epochs=epochs)
    return model.eval(), history


def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate on held-out data, and write the weights."""
    parser = argparse.ArgumentParser(
        prog="python -m tinytorch.models.train", description="Train the models of the zoo."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"from {', '.join(RECIPES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=zoo.WEIGHTS, help="folder for the weights")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in RECIPES]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(RECIPES)}")
    keep_freed_memory()
    for name in options.names or RECIPES:
        model, history = train_model(name, seed=options.seed)
        scores = RECIPES[name].score(model, RECIPES[name].load_data(True))
        path = options.output / f"{name}.safetensors"
        metadata = {
            "command": f"python -m tinytorch.models.train {name} --seed {options.seed}",
            "backend": active_backend().name,
            "numpy": np.__version__,
            "held_out_score": float(scores.mean()),
            "held_out_examples": len(scores),
        }
        save_checkpoint(path, model, metadata=metadata)
        sys.stdout.write(
            f"{name}: training loss {history.values('loss')[-1]:.4f}, held-out score "
            f"{scores.mean():.4f} on {len(scores)} examples -> {path}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
