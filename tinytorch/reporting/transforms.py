"""A plan in the terminal: what changes, what it should bring, and what is left alone and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tinytorch.comparison.accuracy import INCONCLUSIVE, NOT_WORSE, WORSE, AccuracyComparison
from tinytorch.errors import SettingError
from tinytorch.formats.ranges import RangeStatistics
from tinytorch.profiling.layers import LayerGroup, StepGroup, group_layers
from tinytorch.reporting.quantities import (
    BARS,
    GAP,
    UNKNOWN,
    WIDTH,
    Column,
    FittingTable,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    log_plot,
    percent_text,
    seconds_text,
    share_bar,
)
from tinytorch.transforms.compression import CompressionResult, CompressionStage
from tinytorch.transforms.deployment import DOES_NOT_FIT, FITS, NOT_MEASURED, Check, Deployment
from tinytorch.transforms.kv_cache import CachePoint, CacheTradeoff
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.transforms.quantize import Calibration
from tinytorch.transforms.quantize.sensitivity import LayerSensitivity, Sensitivity

__all__ = [
    "gain_text",
    "render_calibration",
    "render_compression",
    "render_deployment",
    "render_plan",
    "render_sensitivity",
    "render_tradeoff",
    "settings_text",
    "skipped_lines",
]


FEW_STEPS = 12
"""So many steps have a row each; of more, the same ones share a row."""
MOST_NAMES = 8
"""So many layers that a reason holds for are named, or groups of them."""
LEAST_WHY = 24
INDENT = "  "


def render_plan(plan: Plan, *, expand: bool = False) -> RenderableType:
    """Lay a plan out, top to bottom.

    Long plans have one row for layers that differ only in a number and to which the same is done
    for the same reason; `expand` gives each its own, and names all that are left alone.
    """
    sections: list[RenderableType] = [_title(plan), _headline(plan)]
    if not plan.is_empty:
        is_grouped = len(plan.steps) > FEW_STEPS and not expand
        rows = plan.step_groups if is_grouped else _one_by_one(plan)
        sections += _section("Steps", _Steps(rows))
        sections += _section("Predicted", _predictions(plan))
    if plan.skipped:
        sections += _section("Left alone", _list(_skipped(plan, expand=expand)))
    if plan.notes:
        sections += _section("Notes", _list(Text(note, "yellow") for note in plan.notes))
    return Group(*sections)


def _section(title: str, content: RenderableType) -> list[RenderableType]:
    return [Text(""), Text(title, style="bold"), content]


# ---------------------------------------------------------------- the head


def _title(plan: Plan) -> Text:
    settings = settings_text(plan)
    title = Text.assemble((f"Plan of {plan.transform}", "bold"))
    return title.append(f"  {settings}", "dim") if settings else title


def settings_text(plan: Plan) -> str:
    """Write the settings that a plan was made with: ``mode='dynamic', bits=8``."""
    return ", ".join(f"{name}={value!r}" for name, value in plan.settings.items() if _tells(value))


def _tells(setting: Any) -> bool:
    """Say whether a setting tells anything: None and empty lists do not."""
    return setting is not None and setting not in ((), [], {})


def _headline(plan: Plan) -> Text:
    if plan.is_empty:
        return Text("Nothing to do: no layer changes.", style="yellow")
    changed, left = len(plan.layers), len({each.layer for each in plan.skipped})
    words = ["1 layer changes" if changed == 1 else f"{changed:,} layers change"]
    if plan.layers == ("",):
        words = ["The model itself changes"]
    if left:
        words.append(f"{left:,} {'is' if left == 1 else 'are'} left alone")
    words += [
        f"predicted to be {factor_text(gain.value)} {better}"
        for gain, better in ((plan.shrinkage, "smaller"), (plan.speedup, "faster"))
        if gain is not None and gain.value > 1
    ]
    return Text(f"{', '.join(words)}.", style="green")


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class _Steps:
    """What is done where, and why; that wraps, and is left out where there is no room for it."""

    rows: Sequence[StepGroup]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        labels = [_shown(row.layers) for row in self.rows]
        sizes = [len(row.layers) for row in self.rows]
        columns = [
            Column("layer", labels, justify="left"),
            Column("n", [str(size) if max(sizes) > 1 else "" for size in sizes], 1),
            Column("what", [row.what for row in self.rows], 0, "left", least=12),
        ]
        whys = list(dict.fromkeys(row.why for row in self.rows))
        is_shared = len(whys) == 1 and len(self.rows) > 1
        shown = [column for column in columns if not column.is_blank]
        room = options.max_width - sum(column.width + GAP for column in shown)
        if not is_shared and room >= LEAST_WHY:
            yield _with_whys(shown, [row.why for row in self.rows])
            return
        texts = [Text(label) for label in labels]
        yield FittingTable("layer", texts, columns[2:], label_least=20)
        if is_shared:
            yield Text(f"why: {whys[0]}", style="dim")


def _with_whys(columns: Sequence[Column], whys: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column.title, no_wrap=True, justify=column.justify)
    table.add_column("why", overflow="fold")
    for index, why in enumerate(whys):
        table.add_row(*(Text(column.cells[index]) for column in columns), Text(why))
    return table


def _one_by_one(plan: Plan) -> list[StepGroup]:
    return [
        StepGroup(LayerGroup(step.layer, (step.layer,)), step.what, step.why) for step in plan.steps
    ]


def _shown(layers: LayerGroup) -> str:
    return layers.name or "(the model itself)"


# ---------------------------------------------------------------- predictions


def _predictions(plan: Plan) -> Table:
    table = _grid(2)
    for name, gain in (("shrinkage", plan.shrinkage), ("speedup", plan.speedup)):
        text = (
            Text(f"not predicted: {plan.not_predicted[name]}", style="dim")
            if gain is None
            else Text.assemble((gain_text(gain), "bold"), f": {gain.basis}")
        )
        table.add_row(Text(f"{INDENT}{name}"), text)
    return table


def gain_text(gain: Gain) -> str:
    """Write how many times better something should become: ``1.80x (1.20x to 2.40x)``."""
    interval = f"{factor_text(gain.low)} to {factor_text(gain.high)}"
    return factor_text(gain.value) + (f" ({interval})" if gain.low < gain.high else "")


# ---------------------------------------------------------------- what is left alone


def skipped_lines(plan: Plan, *, expand: bool = False) -> Iterator[tuple[str, str]]:
    """Yield for each reason the layers that it holds for, and the reason."""
    for reason, layers in plan.skipped_by_reason.items():
        groups = tuple(LayerGroup(each, (each,)) for each in layers)
        if not expand:
            groups = group_layers(layers)
        names = [_shown(group) for group in groups]
        if len(names) > MOST_NAMES and not expand:
            more = sum(len(group) for group in groups[MOST_NAMES - 1 :])
            names[MOST_NAMES - 1 :] = [f"{more:,} more"]
        yield ", ".join(names), reason


def _skipped(plan: Plan, *, expand: bool) -> Iterator[Text]:
    for names, reason in skipped_lines(plan, expand=expand):
        yield Text.assemble(names, (f": {reason}", "dim"))


def _list(lines: Iterable[Text]) -> Table:
    """Lay lines out below each other; what does not fit goes on below the text."""
    table = _grid(1)
    for line in lines:
        table.add_row(Text(f"{INDENT}-"), line)
    return table


def _grid(gap: int) -> Table:
    table = Table.grid(padding=(0, gap, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


# ---------------------------------------------------------------- compressed models in the
# terminal: what each stage did, and whether the result fits

MB, MS = 2**20, 1e-3
COLOURS = {NOT_WORSE: "green", WORSE: "red", FITS: "green", DOES_NOT_FIT: "red"}
OF_STAGES = (
    "Sparsity: the share of zeros among weights with two or more axes. Plain: a file with every "
    "number in its place. Encoded: the compact file with the same numbers. Both were written. "
    "Smaller: the plain original over the encoded file."
)
PARTS = {"zeros": "{} for the zeros", "bits": "{} for the bits"}


# ---------------------------------------------------------------- compression


def render_compression(result: CompressionResult) -> RenderableType:
    """Lay out a row for each stage, and what it comes to."""
    return Group(
        Text.assemble(("Compression", "bold"), (f"  {result.name}", "dim")),
        Text(""),
        _stages(result),
        Text(""),
        Text(_size_conclusion(result)),
        _accuracy_conclusion(result.accuracy, result.baseline_score, result.metric),
        *(Text(f"- {note}", style="yellow") for note in result.notes),
        *_skipped_stages(result),
        Text(""),
        Text(OF_STAGES, style="dim"),
    )


def _stages(result: CompressionResult) -> FittingTable:
    stages = result.stages
    ratios = [_times(result.original_bytes / each.encoded_bytes) for each in stages]
    return FittingTable(
        "stage",
        [Text(each.name) for each in stages],
        [
            Column("sparsity", [percent_text(each.sparsity) for each in stages], 2),
            Column("plain", [bytes_text(each.file_bytes) for each in stages], 3),
            Column("encoded", [bytes_text(each.encoded_bytes) for each in stages], 0),
            Column("smaller", ratios, 1),
            Column(result.metric, [_score(result, each) for each in stages], 2),
            Column("than the original", [_quality(each) for each in stages], 4, "left"),
        ],
    )


def _size_words(ratio: float) -> str:
    """Say how many times smaller something is, or larger."""
    return f"{factor_text(ratio)} smaller" if ratio >= 1 else f"{factor_text(1 / ratio)} larger"


def _times(ratio: float) -> str:
    return factor_text(ratio) if ratio >= 1 else _size_words(ratio)


def _score(result: CompressionResult, stage: CompressionStage) -> str:
    if stage.accuracy is not None:
        return _number(stage.accuracy.candidate_mean)
    return _number(result.baseline_score) if stage is result.stages[0] else UNKNOWN


def _quality(stage: CompressionStage) -> str:
    found = stage.accuracy
    if found is None:
        return ""
    return f"{found.verdict} ({found.difference:+.4f}, at least {found.low:+.4f})"


def _size_conclusion(result: CompressionResult) -> str:
    small, large = bytes_text(result.file_bytes), bytes_text(result.original_bytes)
    header = bytes_text(result.header_bytes)
    text = f"{small} instead of {large}: really {_size_words(result.ratio)}."
    if result.naive_parts:
        parts = [PARTS[name].format(factor_text(part)) for name, part in result.naive_parts.items()]
        product = "" if len(parts) == 1 else f", {factor_text(result.naive_ratio)} in all"
        text += f" The naive product of the parts is {' times '.join(parts)}{product}."
    gap = result.coding_above_bound
    if gap is None:
        return text + f" There is nothing to code; the header is {header}."
    beside = f"{percent_text(abs(gap))} {'more' if gap >= 0 else 'less'} than that"
    if gap < 0:
        beside += " (it knows only how often each number occurs, not that zeros stand together)"
    return text + (
        f" The entropy of whole numbers and zeros, with all other floats as they are, is "
        f"{bytes_text(result.bound_bytes)} ({factor_text(result.bound_ratio)}): their code takes "
        f"{beside}, and the header {header}."
    )


def _accuracy_conclusion(
    accuracy: AccuracyComparison | None, baseline: float | None, metric: str
) -> Text:
    if accuracy is None:
        known = "" if baseline is None else f" The {metric} of the original is {_number(baseline)}."
        return Text(f"Nothing was compared with the original's {metric}.{known}", style="yellow")
    shown = "about" if accuracy.verdict == INCONCLUSIVE else "at"
    return Text(
        f"The {metric} is {accuracy.verdict} {shown} a margin of {accuracy.margin:g}: "
        f"{_number(accuracy.candidate_mean)} after {_number(accuracy.baseline_mean)}, on "
        f"{accuracy.n:,} examples.",
        style=COLOURS.get(accuracy.verdict, "yellow"),
    )


def _skipped_stages(result: CompressionResult) -> list[Text]:
    if not result.skipped:
        return []
    names = [each.layer or "(the model itself)" for each in result.skipped]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [Text(f"Not pruned, with the reasons in .skipped: {shown}", style="dim")]


# ---------------------------------------------------------------- deployment


def render_deployment(deployment: Deployment) -> RenderableType:
    """Lay out a row for each quantity, with its budget if it has one."""
    checks = deployment.checks
    smaller = _size_words(deployment.original_bytes / deployment.file_bytes)
    about = f"  {smaller} than its checkpoint, {bytes_text(deployment.original_bytes)}"
    return Group(
        Text.assemble(("Deployment", "bold"), (f"  {deployment.name}", "dim"), (about, "dim")),
        Text(""),
        FittingTable(
            "what",
            [Text(LABELS[check.name]) for check in checks],
            [
                Column("measured", [_value(check) for check in checks]),
                Column("interval", [_interval(check) for check in checks], 2),
                Column("budget", [_limit(check) for check in checks], 1),
                Column("", [check.verdict for check in checks], 0, "left"),
                Column("why", [check.reason for check in checks], 3, "left", least=20),
            ],
            styles=[COLOURS.get(check.verdict, "") for check in checks],
        ),
        Text(""),
        _verdict(deployment, checks),
        *_quality_line(deployment.accuracy),
        *(Text(f"- {note}", style="yellow") for note in deployment.notes),
    )


LABELS = {
    "flash_mb": "file",
    "load_ms": "file to first answer",
    "latency_ms": "latency",
    "memory_mb": "peak memory",
    "accuracy_drop": "lost score",
}


def _verdict(deployment: Deployment, checks: Sequence[Check]) -> Text:
    limited = [check for check in checks if check.limit is not None]
    if not limited:
        return Text("No budget was given, so nothing is judged.", style="dim")
    if deployment.verdict == FITS:
        kept = "the budget is" if len(limited) == 1 else f"all {len(limited)} budgets are"
        return Text(f"It fits: {kept} kept.", style="green")
    if deployment.verdict == DOES_NOT_FIT:
        return Text(f"It does not fit: {_named(limited, DOES_NOT_FIT)}.", style="red")
    missing = [check for check in limited if check.verdict != FITS]
    unknown = [LABELS[each.name] for each in missing if each.verdict == NOT_MEASURED]
    near = [LABELS[each.name] for each in missing if each.verdict != NOT_MEASURED]
    parts = [f"{', '.join(near)} cannot be told from the budget"] if near else []
    parts += [f"{', '.join(unknown)} was not measured"] if unknown else []
    return Text(f"Inconclusive: {'; '.join(parts)}.", style="yellow")


def _named(checks: Sequence[Check], verdict: str) -> str:
    return ", ".join(
        f"{LABELS[check.name]} {_value(check)} over {_limit(check)}"
        for check in checks
        if check.verdict == verdict
    )


def _quality_line(accuracy: AccuracyComparison | None) -> list[Text]:
    if accuracy is None:
        return []
    return [_accuracy_conclusion(accuracy, None, accuracy.metric)]


def _value(check: Check) -> str:
    return UNKNOWN if check.found is None else _in_unit(check.name, check.found.value)


def _limit(check: Check) -> str:
    return "" if check.limit is None else _in_unit(check.name, check.limit)


def _interval(check: Check) -> str:
    found = check.found
    if found is None or found.low == found.high:
        return ""
    return f"{_in_unit(check.name, found.low)} to {_in_unit(check.name, found.high)}"


def _in_unit(name: str, number: float) -> str:
    if name.endswith("_mb"):
        return bytes_text(number * MB)
    if name.endswith("_ms"):
        return seconds_text(number * MS)
    return f"{number:.4f}" if math.isfinite(number) else UNKNOWN


def _number(number: float | None) -> str:
    return UNKNOWN if number is None or math.isnan(number) else f"{number:.4g}"


# ---------------------------------------------------------------- quantization in the terminal:
# how much each layer hurts, and what calibration has seen

MOST_ROWS = 40
BAR_WIDTH = 12
PICTURE_WIDTH = 20
OF_SENSITIVITY = (
    "Each layer quantized alone. Error: the change of the outputs over their size (both root mean "
    "squares). Top-1: the share of rows whose largest output is in another place."
)
OF_CALIBRATION = (
    "Range: what is chosen to quantize by. Clipped: the share of inputs outside of it, by the "
    "histogram. In pictures, heights are square roots of counts, and brackets enclose the range."
)


# ---------------------------------------------------------------- sensitivity


def render_sensitivity(sensitivity: Sensitivity, *, top: int = MOST_ROWS) -> RenderableType:
    """Lay out a row for each layer, the worst first, and at most `top` of them."""
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    if not sensitivity.layers:
        return Text("No layer is quantized, so no output changes.", style="yellow")
    worst = sensitivity.worst_first
    rows = worst[:top]
    return Group(
        _sensitivity_headline(sensitivity),
        Text(""),
        _sensitivity_table(sensitivity, rows),
        *_left_out(worst[len(rows) :]),
        Text(""),
        Text(OF_SENSITIVITY, style="dim"),
    )


def _sensitivity_headline(sensitivity: Sensitivity) -> Text:
    worst, together = sensitivity.worst_first[0], sensitivity.together
    about = f"  outputs of {_counted(sensitivity.batches, 'batch', 'batches')}"
    count = len(sensitivity.layers)
    if count == 1:
        does = f"Quantizing {_name(worst)} changes the outputs by {_error_text(worst)}"
    else:
        does = (
            f"Quantizing all {count} layers changes the outputs by {_error_text(together)}, the "
            f"worst one alone, {_name(worst)}, by {_error_text(worst)}"
        )
    size, word = abs(together.bytes_saved), "less" if together.bytes_saved >= 0 else "more"
    saved = f"the model then holds {bytes_text(size)} {word}"
    return Text.assemble(("Sensitivity", "bold"), (about, "dim"), f"\n{does}; {saved}.")


def _sensitivity_table(
    sensitivity: Sensitivity, layers: Sequence[LayerSensitivity]
) -> FittingTable:
    is_one = len(sensitivity.layers) == 1
    rows = [*layers, *([] if is_one else [sensitivity.together])]
    labels = [Text(_name(row)) for row in layers]
    changes = [row.top1_change for row in rows]
    are_known = any(change is not None for change in changes)
    return FittingTable(
        "layer",
        labels if is_one else [*labels, Text("all together")],
        [
            Column("", [share_bar(sensitivity.share(row), BAR_WIDTH) for row in rows], 1, "left"),
            Column("error", [_error_text(row) for row in rows]),
            Column("top-1", [percent_text(change) if are_known else "" for change in changes], 3),
            Column("saved", [bytes_text(row.bytes_saved) for row in rows], 2),
            Column("what", [row.what for row in layers] + [""] * (not is_one), 4, "left", least=20),
        ],
        styles=[""] * len(layers) + ["bold"] * (not is_one),
    )


def _left_out(layers: Sequence[LayerSensitivity]) -> list[Text]:
    if not layers:
        return []
    return [Text(f"{len(layers):,} more, with at most {_error_text(layers[0])} each", style="dim")]


def _name(row: LayerSensitivity) -> str:
    return row.layer or "(the model itself)"


def _error_text(row: LayerSensitivity) -> str:
    """Write an error with two decimals of a percent; what is there but tiny is not shown as 0."""
    if 0 < row.error < 0.00005:
        return "<0.01%"
    return f"{row.error:.2%}" if math.isfinite(row.error) else "inf"


# ---------------------------------------------------------------- calibration


def render_calibration(
    statistics: Mapping[str, RangeStatistics], *, ranges: str | None = None
) -> RenderableType:
    """Lay out what each layer was seen to get, and the range that is chosen by that.

    `ranges` is how it is chosen, by default as the calibration says.
    """
    found = (
        statistics
        if isinstance(statistics, Calibration)
        else Calibration(statistics, max((each.batches for each in statistics.values()), default=0))
    )
    method = found.ranges if ranges is None else ranges
    if not found:
        return Text("No layer was calibrated: none that can be was called.", style="yellow")
    chosen = {
        layer: found.range_of(layer, method) if seen.count else None
        for layer, seen in found.items()
    }
    layers, batches = _counted(len(found), "layer"), _counted(found.batches, "batch", "batches")
    about = f"inputs of {layers} in {batches}, ranges by {method}"
    return Group(
        Text.assemble(("Calibration", "bold"), (f"  {about}", "dim")),
        Text(""),
        _calibration_table(found, chosen),
        Text(""),
        Text(OF_CALIBRATION, style="dim"),
    )


def _calibration_table(
    found: Calibration, chosen: Mapping[str, tuple[float, float] | None]
) -> FittingTable:
    seen = list(found.values())
    extremes = [(each.low, each.high) if each.count else None for each in seen]
    return FittingTable(
        "layer",
        [Text(layer or "(the model itself)") for layer in found],
        [
            Column("inputs", [_picture(found, *each) for each in chosen.items()], 2, "left"),
            Column("seen", [_range_text(each) for each in extremes], 3),
            Column("range", [_range_text(each) for each in chosen.values()], 0),
            Column("clipped", [_clipped_text(found, *each) for each in chosen.items()], 1),
            Column("mean", [_error_number(each.mean) for each in seen], 5),
            Column("std", [_error_number(each.std) for each in seen], 5),
            Column("zeros", [_zeros_text(each) for each in seen], 6),
            Column("values", [count_text(each.count) for each in seen], 7),
        ],
    )


def _picture(found: Calibration, layer: str, limits: tuple[float, float] | None) -> str:
    """Draw the histogram of a layer, with brackets around the chosen range."""
    shares = found.shape_of(layer, PICTURE_WIDTH)
    if limits is None or not shares:
        return "nothing seen"
    letters = [_letter(share / max(shares)) for share in shares]
    first, last = _places(limits, min(found[layer].low, 0.0), max(found[layer].high, 0.0))
    parts = letters[:first], ["["], letters[first:last], ["]"], letters[last:]
    return "".join(letter for part in parts for letter in part)


def _places(limits: tuple[float, float], low: float, high: float) -> tuple[int, int]:
    """Give the first letter inside of a range, and the first one after it."""
    if low == high:
        return 0, PICTURE_WIDTH
    first, last = (round((end - low) / (high - low) * PICTURE_WIDTH) for end in limits)
    return first, last


def _letter(part: float) -> str:
    """Give a bar for a part of the largest count; where there is nothing there is no bar."""
    # The square root, so that what is rare, and may be clipped, is seen beside what is common.
    return BARS[round(math.sqrt(part) * (len(BARS) - 1))] if part > 0 else " "


def _range_text(limits: tuple[float, float] | None) -> str:
    return (
        UNKNOWN if limits is None else f"{_error_number(limits[0])} to {_error_number(limits[1])}"
    )


def _clipped_text(found: Calibration, layer: str, limits: tuple[float, float] | None) -> str:
    return UNKNOWN if limits is None else percent_text(found.clipped_share(layer, limits))


def _zeros_text(seen: RangeStatistics) -> str:
    return percent_text(seen.zeros / seen.count) if seen.count else UNKNOWN


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _error_number(number: float) -> str:
    return UNKNOWN if math.isnan(number) else f"{number:.3g}"


# ---------------------------------------------------------------- what a key-value cache costs and
# saves, in the terminal

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
            Column("interval", [_time_interval(point) for point in points], 2),
            Column("the cache is", [point.verdict for point in points], 1, "left"),
        ],
    )


def _time_interval(point: CachePoint) -> str:
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
        found = f"The cache is not faster, or inconclusive, at {last.length} tokens."
        lines = [Text(found, "yellow")]
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
