"""Compressed models in the terminal: what each stage did, and whether the result fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.comparison.accuracy import INCONCLUSIVE, NOT_WORSE, WORSE, AccuracyComparison
from tinytorch.perf.compression.compression_result import CompressionResult, CompressionStage
from tinytorch.perf.compression.deployment import (
    DOES_NOT_FIT,
    FITS,
    NOT_MEASURED,
    Check,
    Deployment,
)
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    factor_text,
    percent_text,
    seconds_text,
)

__all__ = ["render_compression", "render_deployment"]

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
        *_skipped(result),
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


def _skipped(result: CompressionResult) -> list[Text]:
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
    return Text(f"It is not shown to fit: {'; '.join(parts)}.", style="yellow")


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
