"""What a key-value cache costs and saves, in the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tinytorch.perf.memoization.tradeoff import CachePoint, CacheTradeoff
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.log_plot import WIDTH, Mark, log_plot
from tinytorch.reporting.quantities import bytes_text, factor_text, seconds_text

__all__ = ["render_tradeoff"]

PLAIN, CACHED = "●", "○"


def render_tradeoff(tradeoff: CacheTradeoff) -> RenderableType:
    """Lay out bytes and times by length, both curves, and what follows from them."""
    head = f"backend {tradeoff.backend}, batch {tradeoff.batch_size}, one more token"
    return Group(
        Text.assemble((f"KV cache of {tradeoff.name}", "bold"), "  ", (head, "dim")),
        Text(""),
        _table(tradeoff),
        Text(""),
        _Picture(tradeoff),
        Text(f"  {PLAIN} without cache  {CACHED} with cache, seconds per token", style="dim"),
        Text(""),
        *_conclusions(tradeoff),
        *(Text(f"- {note}", style="yellow") for note in tradeoff.notes),
    )


def _table(tradeoff: CacheTradeoff) -> FittingTable:
    points = tradeoff.points
    return FittingTable(
        "tokens",
        [Text(str(point.length)) for point in points],
        [
            Column("cache", [bytes_text(point.cache_bytes) for point in points]),
            Column("without cache", [seconds_text(point.plain_s) for point in points]),
            Column("with cache", [seconds_text(point.cached_s) for point in points]),
            Column("speedup", [factor_text(point.speedup) for point in points]),
            Column("interval", [_interval(point) for point in points], 2),
            Column("the cache is", [point.verdict for point in points], 1, "left"),
        ],
    )


def _interval(point: CachePoint) -> str:
    comparison = point.comparison
    return f"{factor_text(comparison.speedup_low)} to {factor_text(comparison.speedup_high)}"


@dataclass(frozen=True)
class _Picture:
    """Time per token over the length, as wide as the terminal allows."""

    tradeoff: CacheTradeoff

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        points = self.tradeoff.points
        marks = [Mark(point.length, point.plain_s, PLAIN) for point in points]
        marks += [Mark(point.length, point.cached_s, CACHED) for point in points]
        picture = log_plot(
            marks,
            lambda length: 0.0,  # no law, only what was measured
            x_text=lambda length: f"{length:g}",
            y_text=seconds_text,
            width=min(WIDTH, options.max_width),
        )
        yield Text(picture, no_wrap=True, overflow="crop")


def _conclusions(tradeoff: CacheTradeoff) -> list[Text]:
    first, last = tradeoff.points[0], tradeoff.points[-1]
    if tradeoff.break_even is None:
        lines = [Text(f"The cache is not shown to be faster at {last.length} tokens.", "yellow")]
    else:
        lines = [
            Text(
                f"The cache is faster from {tradeoff.break_even} tokens on (the shortest length of "
                "those measured that shows it).",
                "green",
            )
        ]
    if len(tradeoff.points) > 1:
        lines.append(
            Text(
                f"Writing tokens {first.length} to {last.length} takes about "
                f"{seconds_text(tradeoff.cached_total_s)} instead of "
                f"{seconds_text(tradeoff.plain_total_s)}, estimated from the steps above; "
                f"the cache then holds {bytes_text(last.cache_bytes)}."
            )
        )
    lines.append(Text(f"Logits differ by at most {tradeoff.largest_difference:.2g}.", style="dim"))
    return lines
