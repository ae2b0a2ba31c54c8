"""Documents of transforms: plans, quantization, compression, deployment, caches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tinytorch.comparison.accuracy import NOT_WORSE, WORSE, AccuracyComparison
from tinytorch.errors import SettingError
from tinytorch.formats.ranges import RangeStatistics
from tinytorch.profiling.layers import LayerGroup, StepGroup, group_layers
from tinytorch.reporting.document import (
    Banner,
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Facts,
    LogPlot,
    Paragraph,
    Row,
    Section,
    Strong,
    Table,
    Tone,
    Words,
)
from tinytorch.reporting.quantities import (
    BARS,
    UNKNOWN,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    seconds_text,
)
from tinytorch.transforms.compression import CompressionResult, CompressionStage
from tinytorch.transforms.deployment import DOES_NOT_FIT, FITS, NOT_MEASURED, Check, Deployment
from tinytorch.transforms.kv_cache import CachePoint, CacheTradeoff
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.transforms.quantize import Calibration
from tinytorch.transforms.quantize.sensitivity import LayerSensitivity, Sensitivity

__all__ = [
    "calibration_document",
    "compression_document",
    "deployment_document",
    "gain_text",
    "plan_document",
    "sensitivity_document",
    "settings_text",
    "skipped_lines",
    "tradeoff_document",
]

WHOLE_MODEL = "(whole model)"
FEW_STEPS = 12
"""Plans of up to this many steps have a row for each; in longer ones, equal steps share a row."""
MOST_NAMES = 8
"""Layers, or groups of them, that are named beside a reason."""
TONES: dict[str, Tone] = {NOT_WORSE: "good", WORSE: "bad", FITS: "good", DOES_NOT_FIT: "bad"}


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# ---------------------------------------------------------------- plans


def plan_document(plan: Plan, *, expand: bool = False) -> Document:
    """Return what a plan changes, what it should bring, and what is left alone and why.

    Long plans have one row for layers that differ only in a number and to which the same is done
    for the same reason; with `expand` each has its own, and all that are left alone are named.
    """
    return Document(
        f"Plan of {plan.transform}",
        _plan_banner(plan),
        list(_plan_sections(plan, expand=expand)),
        plan.notes,
        raw=plan.to_dict(),
        file_name="tinytorch-plan.json",
        subtitle=settings_text(plan),
    )


def settings_text(plan: Plan) -> str:
    """Write the settings that a plan was made with: ``mode='dynamic', bits=8``."""
    return ", ".join(f"{name}={value!r}" for name, value in plan.settings.items() if _tells(value))


def _tells(setting: Any) -> bool:
    """Return whether a setting tells anything: None and empty lists do not."""
    return setting is not None and setting not in ((), [], {})


def _plan_banner(plan: Plan) -> Banner:
    left = len({each.layer for each in plan.skipped})
    skipped = [f"{left:,} left alone"] if left else []
    if plan.is_empty:
        return Banner("No layer changes", ", ".join(skipped), tone="unknown")
    changed = len(plan.layers)
    verdict = "1 layer changes" if changed == 1 else f"{changed:,} layers change"
    gains = [
        f"predicted {gain_text(gain)} {better}"
        for gain, better in ((plan.shrinkage, "smaller"), (plan.speedup, "faster"))
        if gain is not None and gain.value > 1
    ]
    is_whole = plan.layers == ("",)
    return Banner(
        "The whole model changes" if is_whole else verdict,
        ", ".join([*gains, *skipped]),
        tone="good",
    )


def _plan_sections(plan: Plan, *, expand: bool) -> Iterator[Section]:
    if not plan.is_empty:
        is_grouped = len(plan.steps) > FEW_STEPS and not expand
        steps = plan.step_groups if is_grouped else _one_by_one(plan)
        yield Section("steps", "Steps", list(_steps(steps)))
        gains = (("shrinkage", plan.shrinkage), ("speedup", plan.speedup))
        facts = [(name, _gain_words(plan, name, gain)) for name, gain in gains]
        yield Section("predicted", "Predicted", (Facts(facts),))
    if plan.skipped:
        lines = [f"{names}: {reason}" for names, reason in skipped_lines(plan, expand=expand)]
        yield Section("left-alone", "Left alone", (Bullets(lines),))


def _one_by_one(plan: Plan) -> list[StepGroup]:
    return [
        StepGroup(LayerGroup(step.layer, (step.layer,)), step.what, step.why) for step in plan.steps
    ]


def _steps(steps: Sequence[StepGroup]) -> Iterator[Block]:
    """Yield what is done where, and why; a reason that all steps share stands below."""
    columns = [
        Column("layer", "code", least=20),
        Column("n", "number", "layers", rank=2),
        Column("what", least=12, wraps=True),
        Column("why", rank=1, least=24, wraps=True),
    ]
    are_groups = any(len(each.layers) > 1 for each in steps)
    is_shared = len(steps) > 1 and len({each.why for each in steps}) == 1
    rows = [
        (
            each.layers.name or WHOLE_MODEL,
            str(len(each.layers)) if are_groups else "",
            each.what,
            "" if is_shared else each.why,
        )
        for each in steps
    ]
    yield Table(columns, rows)
    if is_shared:
        yield Paragraph(f"why: {steps[0].why}", "faint")


def _gain_words(plan: Plan, name: str, gain: Gain | None) -> Words:
    if gain is None:
        return f"not predicted: {plan.not_predicted[name]}"
    return Strong(gain_text(gain)), f": {gain.basis}"


def gain_text(gain: Gain) -> str:
    """Write how many times better something should become: ``1.80x (1.20x to 2.40x)``."""
    interval = f"{factor_text(gain.low)} to {factor_text(gain.high)}"
    return factor_text(gain.value) + (f" ({interval})" if gain.low < gain.high else "")


def skipped_lines(plan: Plan, *, expand: bool = False) -> Iterator[tuple[str, str]]:
    """Yield for each reason the layers that it holds for, and the reason."""
    for reason, layers in plan.skipped_by_reason.items():
        groups = tuple(LayerGroup(each, (each,)) for each in layers)
        if not expand:
            groups = group_layers(layers)
        names = [group.name or WHOLE_MODEL for group in groups]
        if len(names) > MOST_NAMES and not expand:
            more = sum(len(group) for group in groups[MOST_NAMES - 1 :])
            names[MOST_NAMES - 1 :] = [f"{more:,} more"]
        yield ", ".join(names), reason


# ---------------------------------------------------------------- compression

OF_STAGES = (
    "Sparsity: the share of zeros among weights with two or more axes. Plain: a file with every "
    "number in its place. Encoded: the compact file with the same numbers. Both were written. "
    "Smaller: the plain original over the encoded file."
)
PARTS = {"zeros": "{} for the zeros", "bits": "{} for the bits"}
MOST_SKIPPED = 5


def compression_document(result: CompressionResult) -> Document:
    """Return a row for each stage, and what it comes to."""
    quality, tone = _accuracy_words(result.accuracy, result.baseline_score, result.metric)
    lines: list[Block] = [Paragraph(each) for each in _size_lines(result)]
    faint = [Paragraph(each, "faint") for each in (_skipped_stages(result), OF_STAGES) if each]
    sizes = f"{bytes_text(result.file_bytes)} instead of {bytes_text(result.original_bytes)}"
    return Document(
        f"Compression of {result.name}",
        Banner(f"{_size_words(result.ratio)}: {sizes}", quality, tone=tone),
        [_stages(result), *lines, *faint],
        result.notes,
        raw=result.to_dict(),
        file_name="tinytorch-compression.json",
    )


def _stages(result: CompressionResult) -> Table:
    columns = [
        Column("stage"),
        Column("sparsity", "number", rank=2),
        Column("plain", "number", rank=3),
        Column("encoded", "number"),
        Column("smaller", "number", rank=1),
        Column(result.metric, "number", rank=2),
        Column("against the original", rank=4),
    ]
    return Table(columns, [_stage_row(result, each) for each in result.stages])


def _stage_row(result: CompressionResult, stage: CompressionStage) -> list[Cell | str]:
    ratio, found = result.original_bytes / stage.encoded_bytes, stage.accuracy
    score = result.baseline_score if stage is result.stages[0] else None
    score = score if found is None else found.candidate_mean
    quality = (
        f"{found.verdict} ({found.difference:+.4f}, at least {found.low:+.4f})" if found else ""
    )
    return [
        stage.name,
        Cell(percent_text(stage.sparsity), stage.sparsity),
        Cell(bytes_text(stage.file_bytes), stage.file_bytes),
        Cell(bytes_text(stage.encoded_bytes), stage.encoded_bytes),
        Cell(factor_text(ratio) if ratio >= 1 else _size_words(ratio), ratio),
        Cell(_number(score), score),
        Cell(quality, tone=TONES.get(found.verdict, "unknown") if found else ""),
    ]


def _size_words(ratio: float) -> str:
    return f"{factor_text(ratio)} smaller" if ratio >= 1 else f"{factor_text(1 / ratio)} larger"


def _size_lines(result: CompressionResult) -> Iterator[str]:
    """Yield the ratio beside what the parts promise, and beside what the entropy allows."""
    if result.naive_parts:
        parts = [PARTS[name].format(factor_text(part)) for name, part in result.naive_parts.items()]
        product = "" if len(parts) == 1 else f", {factor_text(result.naive_ratio)} in all"
        yield f"Naive product of the parts: {' times '.join(parts)}{product}."
    header, gap = bytes_text(result.header_bytes), result.coding_above_bound
    if gap is None:
        yield f"There is nothing to code; the header is {header}."
        return
    beside = f"{percent_text(abs(gap))} {'more' if gap >= 0 else 'less'}"
    if gap < 0:
        beside += " (it counts how often each number occurs, not that zeros stand together)"
    bound = f"{bytes_text(result.bound_bytes)} ({factor_text(result.bound_ratio)})"
    yield (
        f"Entropy of whole numbers and zeros, with all other floats as they are: {bound}. "
        f"Their code takes {beside}, the header {header}."
    )


def _accuracy_words(
    accuracy: AccuracyComparison | None, baseline: float | None, metric: str
) -> tuple[str, Tone]:
    if accuracy is None:
        known = "" if baseline is None else f" ({_number(baseline)})"
        return f"{metric} not compared with the original's{known}", "unknown"
    scores = f"{_number(accuracy.candidate_mean)}, original {_number(accuracy.baseline_mean)}"
    words = f"{metric} {accuracy.verdict}: {scores} (margin {accuracy.margin:g}, n={accuracy.n:,})"
    return words, TONES.get(accuracy.verdict, "unknown")


def _skipped_stages(result: CompressionResult) -> str:
    names = [each.layer or WHOLE_MODEL for each in result.skipped]
    if not names:
        return ""
    more = len(names) - MOST_SKIPPED
    shown = ", ".join(names[:MOST_SKIPPED]) + (f" and {more} more" if more > 0 else "")
    return f"Not pruned, with the reasons in .skipped: {shown}"


def _number(number: float | None) -> str:
    return UNKNOWN if number is None or math.isnan(number) else f"{number:.4g}"


# ---------------------------------------------------------------- deployment

MB, MS = 2**20, 1e-3
LABELS = {
    "flash_mb": "file",
    "load_ms": "file to first answer",
    "latency_ms": "latency",
    "memory_mb": "peak memory",
    "accuracy_drop": "accuracy drop",
}


def deployment_document(deployment: Deployment) -> Document:
    """Return a row for each quantity, with its budget if it has one."""
    columns = [
        Column("what"),
        Column("measured", "number"),
        Column("interval", "number", rank=2),
        Column("budget", "number", rank=1),
        Column("verdict"),
        Column("why", rank=3, least=20, wraps=True),
    ]
    smaller = _size_words(deployment.original_bytes / deployment.file_bytes)
    blocks: list[Block] = [Table(columns, [_check_row(each) for each in deployment.checks])]
    if deployment.accuracy is not None:
        metric = deployment.accuracy.metric
        blocks.append(Paragraph(*_accuracy_words(deployment.accuracy, None, metric)))
    return Document(
        f"Deployment of {deployment.name}",
        _deployment_banner(deployment),
        blocks,
        deployment.notes,
        raw=deployment.to_dict(),
        file_name="tinytorch-deployment.json",
        subtitle=f"{smaller} than its checkpoint, {bytes_text(deployment.original_bytes)}",
    )


def _check_row(check: Check) -> Row:
    found = check.found
    cells = (
        LABELS[check.name],
        Cell(_value(check), found.value if found else None),
        _interval(check),
        "" if check.limit is None else _in_unit(check.name, check.limit),
        check.verdict,
        check.reason,
    )
    return Row(cells, tone=TONES.get(check.verdict, ""))


def _deployment_banner(deployment: Deployment) -> Banner:
    limited = [check for check in deployment.checks if check.limit is not None]
    if not limited:
        return Banner("No budget was given", "Nothing is judged.")
    if deployment.verdict == FITS:
        return Banner("Fits", f"within {_counted(len(limited), 'budget')}", tone="good")
    if deployment.verdict == DOES_NOT_FIT:
        over = [
            f"{LABELS[each.name]} {_value(each)} over {_in_unit(each.name, each.limit)}"
            for each in limited
            if each.verdict == DOES_NOT_FIT and each.limit is not None
        ]
        return Banner("Does not fit", ", ".join(over), tone="bad")
    missing = [each for each in limited if each.verdict not in (FITS, NOT_MEASURED)]
    parts = [f"{LABELS[each.name]}: the interval contains the budget" for each in missing]
    parts += [f"{LABELS[x.name]}: not measured" for x in limited if x.verdict == NOT_MEASURED]
    return Banner("Inconclusive", "; ".join(parts), tone="unknown")


def _value(check: Check) -> str:
    return UNKNOWN if check.found is None else _in_unit(check.name, check.found.value)


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


# ---------------------------------------------------------------- sensitivity

MOST_ROWS = 40
OF_SENSITIVITY = (
    "Each layer quantized alone. Error: the change of the outputs over their size (both root mean "
    "squares). Top-1: the share of rows whose largest output is in another place."
)


def sensitivity_document(sensitivity: Sensitivity, *, top: int = MOST_ROWS) -> Document:
    """Return a row for each layer, the worst first, and at most `top` of them."""
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    title = "Sensitivity"
    if not sensitivity.layers:
        return Document(
            title, Banner("No layer is quantized", "No output changes.", tone="unknown")
        )
    worst, is_one = sensitivity.worst_first, len(sensitivity.layers) == 1
    shown = worst[:top]
    rows = [Row(_sensitivity_row(sensitivity, each, _name(each), each.what)) for each in shown]
    if not is_one:
        total = _sensitivity_row(sensitivity, sensitivity.together, "all together", "")
        rows.append(Row(total, tone="total"))
    columns = [
        Column("layer", "code"),
        Column("error", "bar"),
        Column("top-1", "number", "outputs whose largest value is in another place", rank=3),
        Column("saved", "number", "bytes", rank=2),
        Column("what", rank=4, least=20),
    ]
    left = worst[top:]
    more = f"{len(left):,} more, with at most {_error_text(left[0])} each" if left else ""
    return Document(
        title,
        _sensitivity_banner(sensitivity),
        (
            Table(columns, rows),
            *([Paragraph(more)] if more else []),
            Paragraph(OF_SENSITIVITY, "faint"),
        ),
        raw=sensitivity.to_dict(),
        file_name="tinytorch-sensitivity.json",
        subtitle=f"outputs of {_counted(sensitivity.batches, 'batch', 'batches')}",
    )


def _sensitivity_banner(sensitivity: Sensitivity) -> Banner:
    worst, together = sensitivity.worst_first[0], sensitivity.together
    size, word = abs(together.bytes_saved), "less" if together.bytes_saved >= 0 else "more"
    held = f"{bytes_text(size)} {word} held"
    count = len(sensitivity.layers)
    if count == 1:
        return Banner(f"Output error {_error_text(worst)} with {_name(worst)} quantized", held)
    alone = f"worst layer alone: {_name(worst)}, {_error_text(worst)}"
    verdict = f"Output error {_error_text(together)} with {count} layers quantized"
    return Banner(verdict, f"{alone}; {held}")


def _sensitivity_row(
    sensitivity: Sensitivity, row: LayerSensitivity, name: str, what: str
) -> list[Cell | str]:
    return [
        name,
        Cell(_error_text(row), row.error, bar=sensitivity.share(row)),
        Cell(percent_text(row.top1_change), row.top1_change),
        Cell(bytes_text(row.bytes_saved), row.bytes_saved),
        what,
    ]


def _name(row: LayerSensitivity) -> str:
    return row.layer or WHOLE_MODEL


def _error_text(row: LayerSensitivity) -> str:
    """Write an error with two decimals of a percent; what is there but tiny is not shown as 0."""
    if 0 < row.error < 0.00005:
        return "<0.01%"
    return f"{row.error:.2%}" if math.isfinite(row.error) else "inf"


# ---------------------------------------------------------------- calibration

PICTURE_WIDTH = 20
NO_BAR = "\u2800"
"""A blank that no medium merges with its neighbours."""
OF_CALIBRATION = (
    "Range: what is chosen to quantize by. Clipped: the share of inputs outside of it, by the "
    "histogram. In pictures, heights are square roots of counts, and brackets enclose the range."
)
CALIBRATED = (
    Column("layer", "code"),
    Column("inputs", rank=2),
    Column("seen", "number", "lowest and highest input", rank=3),
    Column("range", "number"),
    Column("clipped", "number", rank=1),
    Column("mean", "number", rank=5),
    Column("std", "number", rank=5),
    Column("zeros", "number", rank=6),
    Column("values", "number", rank=7),
)


def calibration_document(
    statistics: Mapping[str, RangeStatistics], *, ranges: str | None = None
) -> Document:
    """Return the inputs that each layer was seen to get, and the range that is chosen by them.

    `ranges` is how it is chosen, by default as the calibration says.
    """
    found = (
        statistics
        if isinstance(statistics, Calibration)
        else Calibration(statistics, max((each.batches for each in statistics.values()), default=0))
    )
    method = found.ranges if ranges is None else ranges
    if not found:
        none = Banner("No layer was calibrated", "None that can be was called.", tone="unknown")
        return Document("Calibration", none)
    rows = [_calibration_row(found, layer, method) for layer in found]
    layers, batches = _counted(len(found), "layer"), _counted(found.batches, "batch", "batches")
    return Document(
        "Calibration",
        blocks=(Table(CALIBRATED, rows), Paragraph(OF_CALIBRATION, "faint")),
        raw=found.to_dict(),
        file_name="tinytorch-calibration.json",
        subtitle=f"inputs of {layers} in {batches}, ranges by {method}",
    )


def _calibration_row(found: Calibration, layer: str, method: str) -> list[Cell | str]:
    seen, name = found[layer], layer or WHOLE_MODEL
    if not seen.count:
        return [name, "nothing seen", *[UNKNOWN] * 6, Cell("0", 0)]
    limits = found.range_of(layer, method)
    clipped = found.clipped_share(layer, limits)
    return [
        name,
        _picture(found, layer, limits),
        Cell(_range_text((seen.low, seen.high)), seen.low),
        Cell(_range_text(limits), limits[0]),
        Cell(percent_text(clipped), clipped),
        Cell(_short(seen.mean), seen.mean),
        Cell(_short(seen.std), seen.std),
        Cell(percent_text(seen.zeros / seen.count), seen.zeros / seen.count),
        Cell(count_text(seen.count), seen.count),
    ]


def _picture(found: Calibration, layer: str, limits: tuple[float, float]) -> str:
    """Draw the histogram of a layer, with brackets around the chosen range."""
    shares = found.shape_of(layer, PICTURE_WIDTH)
    letters = [_letter(share / max(shares)) for share in shares]
    first, last = _places(limits, min(found[layer].low, 0.0), max(found[layer].high, 0.0))
    parts = letters[:first], ["["], letters[first:last], ["]"], letters[last:]
    return "".join(letter for part in parts for letter in part)


def _places(limits: tuple[float, float], low: float, high: float) -> tuple[int, int]:
    """Return the first letter inside of a range, and the first one after it."""
    if low == high:
        return 0, PICTURE_WIDTH
    first, last = (round((end - low) / (high - low) * PICTURE_WIDTH) for end in limits)
    return first, last


def _letter(part: float) -> str:
    """Return a bar for a part of the largest count; where there is nothing there is no bar."""
    # The square root, so that what is rare, and may be clipped, is seen beside what is common.
    return BARS[round(math.sqrt(part) * (len(BARS) - 1))] if part > 0 else NO_BAR


def _range_text(limits: tuple[float, float]) -> str:
    return f"{_short(limits[0])} to {_short(limits[1])}"


def _short(number: float) -> str:
    return UNKNOWN if math.isnan(number) else f"{number:.3g}"


# ---------------------------------------------------------------- what a key-value cache costs and
# saves

PLAIN, CACHED = "●", "○"
CACHE = (
    Column("tokens", "number"),
    Column("cache", "number"),
    Column("without cache", "number"),
    Column("with cache", "number"),
    Column("speedup", "number"),
    Column("95% interval", rank=2),
    Column("the cache is", rank=1),
)


def tradeoff_document(tradeoff: CacheTradeoff) -> Document:
    """Return bytes and times by length, both curves, and what follows from them."""
    points, last = tradeoff.points, tradeoff.points[-1]
    marks = [Mark(point.length, point.plain_s, PLAIN) for point in points]
    marks += [Mark(point.length, point.cached_s, CACHED) for point in points]
    legend = f"{PLAIN} without cache, {CACHED} with cache, by number of tokens."
    if tradeoff.break_even is None:
        verdict = f"The cache is not faster, or inconclusive, at {last.length} tokens"
        banner = Banner(verdict, tone="unknown")
    else:
        verdict = f"The cache is faster from {tradeoff.break_even} tokens on"
        banner = Banner(verdict, "the shortest measured length that shows it", tone="good")
    return Document(
        f"KV cache of {tradeoff.name}",
        banner,
        (
            Table(CACHE, [_point_row(each) for each in points]),
            LogPlot(marks, y_unit="s", title="Time per token.", about=legend),
            *map(Paragraph, _tradeoff_lines(tradeoff)),
        ),
        tradeoff.notes,
        raw=tradeoff.to_dict(),
        file_name="tinytorch-kv-cache.json",
        subtitle=f"backend {tradeoff.backend}, batch {tradeoff.batch_size}, one more token",
    )


def _point_row(point: CachePoint) -> list[Cell | str]:
    found = point.comparison
    return [
        Cell(str(point.length), point.length),
        Cell(bytes_text(point.cache_bytes), point.cache_bytes),
        Cell(seconds_text(point.plain_s), point.plain_s),
        Cell(seconds_text(point.cached_s), point.cached_s),
        Cell(factor_text(point.speedup), point.speedup),
        f"{factor_text(found.speedup_low)} to {factor_text(found.speedup_high)}",
        point.verdict,
    ]


def _tradeoff_lines(tradeoff: CacheTradeoff) -> Iterator[str]:
    first, last = tradeoff.points[0], tradeoff.points[-1]
    if len(tradeoff.points) > 1:
        cached, plain = map(seconds_text, (tradeoff.cached_total_s, tradeoff.plain_total_s))
        yield (
            f"Tokens {first.length} to {last.length}: about {cached} instead of {plain}, estimated "
            f"from these steps; the cache then holds {bytes_text(last.cache_bytes)}."
        )
    yield f"Logits differ by at most {tradeoff.largest_difference:.2g}."
