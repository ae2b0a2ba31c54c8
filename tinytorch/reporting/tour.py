"""The tour in the terminal."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.text_graphics import braille_image, sparkline
from tinytorch.workloads.tour import SampleDigit, Tour, TrainedModel

__all__ = ["render_tour"]

INK = 1.2
"""Pixels brighter than this are drawn. Inputs are centred; this is a grey value of about 0.5."""


def render_tour(tour: Tour) -> RenderableType:
    """Lay the whole tour out, top to bottom."""
    return Group(
        _heading(f"Three models, trained here from scratch (backend {tour.backend})"),
        _models(tour),
        Text(
            "Scores are of held-out data; 'constant' is the best answer that needs no learning. "
            "For gpt a score is the log-likelihood per character in nats: closer to 0 is better.",
            style="dim",
        ),
        _heading("Digits nobody trained on, read by the shipped cnn"),
        Columns([_digit(digit) for digit in tour.digits], padding=(0, 2)),
        _heading(f"English, one character at a time, after {tour.prompt.strip()!r}"),
        _text(f"gpt after {tour.models[-1].steps} steps", tour.fresh_text),
        _text("gpt as shipped", tour.shipped_text),
        Text(""),
        _verdict(tour),
    )


def _heading(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _models(tour: Tour) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for name in ("parameters", "steps", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("loss")
    for name in ("constant", "here", "shipped"):
        table.add_column(name, justify="right")
    for model in tour.models:
        table.add_row(
            model.name,
            f"{model.parameters:,}",
            str(model.steps),
            f"{model.training_s:.1f}",
            f"{model.losses[0]:.2f} {sparkline(model.losses, 8)} {model.losses[-1]:.2f}",
            *(
                _score(model, score)
                for score in (model.without_learning, model.fresh_score, model.shipped_score)
            ),
        )
    return table


def _score(model: TrainedModel, score: float) -> str:
    return f"{score:.1%}" if model.metric == "accuracy" else f"{score:.3f}"


def _digit(digit: SampleDigit) -> RenderableType:
    right = digit.predicted == digit.label
    words = f"a {digit.predicted} ({digit.probability:.0%})"
    verdict = Text(words if right else f"{words}, is a {digit.label}", style="" if right else "red")
    return Group(Text(braille_image(digit.image, INK)), verdict)


def _text(title: str, text: str) -> RenderableType:
    return Group(Text(f"{title}:", style="dim"), Padding(Text(text.strip()), (0, 0, 0, 2)))


def _verdict(tour: Tour) -> Text:
    if tour.works:
        return Text("Everything works: every model learned.", style="green")
    failed = ", ".join(model.name for model in tour.models if not model.works)
    return Text(f"Something is wrong: no better than without learning: {failed}.", style="red")
