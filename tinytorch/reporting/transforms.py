"""Documents of transforms: plans, compression, sensitivity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinytorch.comparison.accuracy import NOT_WORSE, WORSE, AccuracyComparison
from tinytorch.errors import SettingError
from tinytorch.profiling.layers import LayerGroup, StepGroup, group_layers
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    factor_text,
    percent_text,
)
from tinytorch.transforms.compression import CompressionResult, CompressionStage
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.transforms.quantize.sensitivity import LayerSensitivity, Sensitivity

WHOLE_MODEL = "(whole model)"
FEW_STEPS = 12
"""Plans of up to this many steps have a row for each; in longer ones, equal steps share a row."""
MOST_NAMES = 8
"""Layers, or groups of them, that are named beside a reason."""
TONES: dict[str, doc.Tone] = {NOT_WORSE: "good", WORSE: "bad"}


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# ---------------------------------------------------------------- plans


def plan_document(plan: Plan, *, expand: bool = False) -> doc.Document:
    """Return what a plan changes, what it should bring, and what is left alone and why.

    Long plans have one row for layers that differ only in a number and to which the same is done
    for the same reason; with `expand` each has its own, and all that are left alone are named.
    """
    return doc.Document(
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


def _plan_banner(plan: Plan) -> doc.Banner:
    left = len({each.layer for each in plan.skipped})
    skipped = [f"{left:,} left alone"] if left else []
    if plan.is_empty:
        return doc.Banner("No layer changes", ", ".join(skipped), tone="unknown")
    changed = len(plan.layers)
    verdict = "1 layer changes" if changed == 1 else f"{changed:,} layers change"
    gains = [
        f"predicted {gain_text(gain)} {better}"
        for gain, better in ((plan.shrinkage, "smaller"), (plan.speedup, "faster"))
        if gain is not None and gain.value > 1
    ]
    is_whole = plan.layers == ("",)
    return doc.Banner(
        "The whole model changes" if is_whole else verdict,
        ", ".join([*gains, *skipped]),
        tone="good",
    )


def _plan_sections(plan: Plan, *, expand: bool) -> Iterator[doc.Section]:
    if not plan.is_empty:
        is_grouped = len(plan.steps) > FEW_STEPS and not expand
        steps = plan.step_groups if is_grouped else _one_by_one(plan)
        yield doc.Section("steps", "Steps", list(_steps(steps)))
        gains = (("shrinkage", plan.shrinkage), ("speedup", plan.speedup))
        facts = [(name, _gain_words(plan, name, gain)) for name, gain in gains]
        yield doc.Section("predicted", "Predicted", (doc.Facts(facts),))
    if plan.skipped:
        lines = [f"{names}: {reason}" for names, reason in skipped_lines(plan, expand=expand)]
        yield doc.Section("left-alone", "Left alone", (doc.Bullets(lines),))


def _one_by_one(plan: Plan) -> list[StepGroup]:
    return [
        StepGroup(LayerGroup(step.layer, (step.layer,)), step.what, step.why) for step in plan.steps
    ]


def _steps(steps: Sequence[StepGroup]) -> Iterator[doc.Block]:
    """Yield what is done where, and why; a reason that all steps share stands below."""
    are_groups = any(len(each.layers) > 1 for each in steps)
    is_shared = len(steps) > 1 and len({each.why for each in steps}) == 1
    yield doc.table_of(
        steps,
        doc.column("layer", lambda each: each.layers.name or WHOLE_MODEL, "code", least=20),
        doc.column("n", lambda each: _size(each) if are_groups else "", "number", "layers", rank=2),
        doc.column("what", lambda each: each.what, least=12, wraps=True),
        doc.column("why", lambda x: "" if is_shared else x.why, rank=1, least=24, wraps=True),
    )
    if is_shared:
        yield doc.Paragraph(f"why: {steps[0].why}", "faint")


def _size(step: StepGroup) -> str:
    return str(len(step.layers))


def _gain_words(plan: Plan, name: str, gain: Gain | None) -> doc.Words:
    if gain is None:
        return f"not predicted: {plan.not_predicted[name]}"
    return doc.Strong(gain_text(gain)), f": {gain.basis}"


def gain_text(gain: Gain) -> str:
    """Write how many times better something should become: ``1.80x (1.20x to 2.40x)``."""
    interval = f" ({factor_text(gain.low)} to {factor_text(gain.high)})"
    return factor_text(gain.value) + (interval if gain.low < gain.high else "")


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


def compression_document(result: CompressionResult) -> doc.Document:
    """Return a row for each stage, and what it comes to."""
    quality, tone = _accuracy_words(result.accuracy, result.baseline_score, result.metric)
    lines: list[doc.Block] = [doc.Paragraph(each) for each in _size_lines(result)]
    faint = [doc.Paragraph(each, "faint") for each in (_skipped_stages(result), OF_STAGES) if each]
    sizes = f"{bytes_text(result.file_bytes)} instead of {bytes_text(result.original_bytes)}"
    return doc.Document(
        f"Compression of {result.name}",
        doc.Banner(f"{_size_words(result.ratio)}: {sizes}", quality, tone=tone),
        [_stages(result), *lines, *faint],
        result.notes,
        raw=result.to_dict(),
        file_name="tinytorch-compression.json",
    )


def _stages(result: CompressionResult) -> doc.Table:
    def score(stage: CompressionStage) -> float | None:
        if stage.accuracy is not None:
            return stage.accuracy.candidate_mean
        return result.baseline_score if stage is result.stages[0] else None

    def quality(stage: CompressionStage) -> doc.Cell:
        found = stage.accuracy
        if found is None:
            return doc.Cell("")
        ends = f"{found.difference:+.4f}, at least {found.low:+.4f}"
        return doc.Cell(f"{found.verdict} ({ends})", tone=TONES.get(found.verdict, "unknown"))

    def smaller(ratio: float) -> str:
        return factor_text(ratio) if ratio >= 1 else _size_words(ratio)

    return doc.table_of(
        result.stages,
        doc.column("stage", lambda each: each.name),
        doc.number("sparsity", lambda each: each.sparsity, percent_text, rank=2),
        doc.number("plain", lambda each: each.file_bytes, bytes_text, rank=3),
        doc.number("encoded", lambda each: each.encoded_bytes, bytes_text),
        doc.number(
            "smaller", lambda each: result.original_bytes / each.encoded_bytes, smaller, rank=1
        ),
        doc.number(result.metric, score, _number, rank=2),
        doc.column("against the original", quality, rank=4),
    )


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
) -> tuple[str, doc.Tone]:
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


# ---------------------------------------------------------------- sensitivity

MOST_ROWS = 40
MOVED = "outputs whose largest value is in another place"
OF_SENSITIVITY = (
    "Each layer quantized alone. Error: the change of the outputs over their size (both root mean "
    "squares). Top-1: the share of rows whose largest output is in another place."
)


def sensitivity_document(sensitivity: Sensitivity, *, top: int = MOST_ROWS) -> doc.Document:
    """Return a row for each layer, the worst first, and at most `top` of them."""
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    title = "Sensitivity"
    if not sensitivity.layers:
        return doc.Document(
            title, doc.Banner("No layer is quantized", "No output changes.", tone="unknown")
        )
    worst = sensitivity.worst_first
    left = worst[top:]
    more = f"{len(left):,} more, with at most {_error_text(left[0])} each" if left else ""
    return doc.Document(
        title,
        _sensitivity_banner(sensitivity),
        (
            _sensitivity_table(sensitivity, worst[:top]),
            *([doc.Paragraph(more)] if more else []),
            doc.Paragraph(OF_SENSITIVITY, "faint"),
        ),
        raw=sensitivity.to_dict(),
        file_name="tinytorch-sensitivity.json",
        subtitle=f"outputs of {_counted(sensitivity.batches, 'batch', 'batches')}",
    )


def _sensitivity_banner(sensitivity: Sensitivity) -> doc.Banner:
    worst, together = sensitivity.worst_first[0], sensitivity.together
    size, word = abs(together.bytes_saved), "less" if together.bytes_saved >= 0 else "more"
    held = f"{bytes_text(size)} {word} held"
    count = len(sensitivity.layers)
    if count == 1:
        return doc.Banner(f"Output error {_error_text(worst)} with {_name(worst)} quantized", held)
    alone = f"worst layer alone: {_name(worst)}, {_error_text(worst)}"
    verdict = f"Output error {_error_text(together)} with {count} layers quantized"
    return doc.Banner(verdict, f"{alone}; {held}")


def _sensitivity_table(sensitivity: Sensitivity, shown: Sequence[LayerSensitivity]) -> doc.Table:
    together = sensitivity.together

    def error(row: LayerSensitivity) -> doc.Cell:
        return doc.Cell(_error_text(row), row.error, bar=sensitivity.share(row))

    return doc.table_of(
        [*shown, *([together] if len(sensitivity.layers) > 1 else [])],
        doc.column("layer", lambda x: "all together" if x is together else _name(x), "code"),
        doc.column("error", error, "bar"),
        doc.number("top-1", lambda each: each.top1_change, percent_text, MOVED, rank=3),
        doc.number("saved", lambda each: each.bytes_saved, bytes_text, "bytes", rank=2),
        doc.column("what", lambda x: "" if x is together else x.what, rank=4, least=20),
        tone=lambda x: "total" if x is together else "",
    )


def _name(row: LayerSensitivity) -> str:
    return row.layer or WHOLE_MODEL


def _error_text(row: LayerSensitivity) -> str:
    """Write an error with two decimals of a percent; what is there but tiny is not shown as 0."""
    if 0 < row.error < 0.00005:
        return "<0.01%"
    return f"{row.error:.2%}" if math.isfinite(row.error) else "inf"
