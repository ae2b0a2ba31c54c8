"""What an optimization says in words: its verdict, why it was slow, reasons, limits and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tinytorch.comparison.accuracy import NOT_WORSE
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import BASELINE, CANDIDATE
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER, Estimate
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT
from tinytorch.models.targets import HF
from tinytorch.models.zoo import ZOO
from tinytorch.profiling.profile import DeviceFacts, find_facts
from tinytorch.reporting.comparison import (
    CALLS,
    difference_text,
    missing_lines,
    note_lines,
    score_text,
    shared_plot,
    speedup_ends,
    speedup_row,
    speedup_text,
)
from tinytorch.reporting.comparison import TONES as VERDICT_TONES
from tinytorch.reporting.document import Tone, notes_once
from tinytorch.reporting.forest_plot import ForestPlot
from tinytorch.reporting.profile_words import device_sentence, mostly_waits, reasons
from tinytorch.reporting.quantities import (
    UNKNOWN,
    percent_text,
    range_text,
    rate_text,
    ratio_text,
    seconds_text,
    without_numbers,
)
from tinytorch.transforms.inference_mode import INFERENCE_MODE
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    BROKEN,
    DROPPED,
    FAILED,
    FRESH,
    IN_MEMORY,
    INACCURATE,
    NO_GAIN,
    NOT_TRIED,
    RELOADED,
    SKIPPED,
    WORSE,
    Attempt,
    LimitCheck,
    is_less,
    is_more,
    measured_by,
)
from tinytorch.tuning.optimization import Contribution, Optimization
from tinytorch.tuning.ranking import OBJECTIVE_OF, value_at

# ---------------------------------------------------------------- attempts in words: the same ones
# in the terminal, in Markdown and on pages

AIMS = {
    "latency": "faster",
    "throughput": "faster",
    "memory": "smaller in parameters and live tensors",
    "size": "smaller on disk",
}
"""Goal -> what the model should become."""
TONES: dict[str, Tone] = {
    BETTER: "good",
    NO_GAIN: "neutral",
    WORSE: "bad",
    INCONCLUSIVE: "unknown",
    ACCURACY_INCONCLUSIVE: "unknown",
    INACCURATE: "bad",
    BROKEN: "bad",
    FAILED: "bad",
    DROPPED: "bad",
    SKIPPED: "neutral",
    NOT_TRIED: "unknown",
}
"""Outcome -> how it looks."""


def attempt_phrases(attempt: Attempt, goal: str = "latency") -> list[str]:
    """Say what became of time, memory, size and accuracy; what the goal is about comes first."""
    if attempt.comparison is None:
        return [attempt.outcome]
    measured = attempt.measured
    phrases = {
        "time": _speed_phrase(attempt.comparison),
        "memory": _bytes_phrase(measured.memory, "in parameters and live tensors"),
        "size": _bytes_phrase(measured.size, "on disk"),
    }
    first = OBJECTIVE_OF[goal]
    if not phrases[first]:
        phrases[first] = f"not {AIMS[goal]}"
    ordered = sorted(phrases, key=lambda name: name != first)
    found = [phrases[name] for name in ordered] + _quality_phrases(attempt.comparison)
    return [each for each in found if each]


def _speed_phrase(comparison: Comparison) -> str:
    """Say what is shown about time: ``2.31x faster (2.25x to 2.38x)``."""
    ends = speedup_ends(comparison)
    if comparison.verdict == FASTER:
        return f"{ratio_text(comparison.speedup)} faster ({ends})"
    if comparison.verdict == SLOWER:
        return f"slower (a speedup of {speedup_text(comparison)})"
    if comparison.verdict == SAME:
        return f"as fast ({ends})"
    return f"{comparison.verdict} (interval {ends})"


def _bytes_phrase(share: Estimate | None, where: str) -> str:
    if share is not None and is_less(share):
        return f"{ratio_text(share.inverse.value)} smaller {where}"
    if share is not None and is_more(share):
        return f"{ratio_text(share.value)} as large {where}"
    return ""


def _quality_phrases(comparison: Comparison) -> list[str]:
    """Say what the scores show; and how far outputs are off, where scores do not decide."""
    accuracy, outputs = comparison.accuracy, _outputs_phrase(comparison.outputs)
    if accuracy is None:
        return [outputs]
    write = score_text(accuracy)
    means = f"{write(accuracy.baseline_mean)} to {write(accuracy.candidate_mean)}"
    if accuracy.verdict == NOT_WORSE and accuracy.metric == "accuracy":
        return [f"as accurate ({means})"]
    if accuracy.verdict == NOT_WORSE:
        return [f"with as good a {accuracy.metric} ({means})"]
    if accuracy.baseline_scores == accuracy.candidate_scores:
        return [f"with the same scores ({means})", outputs]
    seen = f"{means}, {accuracy.n} examples"
    return [f"{accuracy.metric} {accuracy.verdict} ({seen})", outputs]


def _outputs_phrase(outputs: OutputDifference | None) -> str:
    if outputs is None or outputs.mismatch:
        return ""
    if outputs.is_identical:
        return "with the same outputs"
    if outputs.max_relative_error is None:
        return ""
    return f"with outputs off by up to {outputs.max_relative_error:.2g} of the largest"


# ---------------------------------------------------------------- single numbers


def speed_text(attempt: Attempt) -> str:
    """Write how many times faster an attempt is."""
    return ratio_text(attempt.comparison.speedup) if attempt.comparison else UNKNOWN


def interval_text(attempt: Attempt) -> str:
    """Write the interval of that."""
    return UNKNOWN if attempt.comparison is None else speedup_ends(attempt.comparison)


def share_text(share: Estimate | None) -> str:
    """Write what is left of the baseline's time or bytes, in percent."""
    return UNKNOWN if share is None else percent_text(share.value)


def accuracy_text(attempt: Attempt) -> str:
    """Write the mean score of an attempt."""
    accuracy = attempt.comparison.accuracy if attempt.comparison else None
    return UNKNOWN if accuracy is None else score_text(accuracy)(accuracy.candidate_mean)


def accuracy_change(attempt: Attempt) -> str:
    """Write how the mean score changed."""
    accuracy = attempt.comparison.accuracy if attempt.comparison else None
    return UNKNOWN if accuracy is None else difference_text(accuracy, accuracy.difference)


# ---------------------------------------------------------------- what an optimization says in
# words: its verdict, why it was slow, reasons, limits and notes

BASELINE_NAME = "baseline"
PLURALS = {
    BETTER: "better",
    NO_GAIN: "without a gain",
    WORSE: "worse",
    INCONCLUSIVE: INCONCLUSIVE,
    ACCURACY_INCONCLUSIVE: "with an inconclusive accuracy",
    INACCURATE: "inaccurate",
    BROKEN: "broken",
    FAILED: "failed",
    DROPPED: "dropped",
    SKIPPED: "skipped",
    NOT_TRIED: "not tried",
}
"""Outcome -> what stands behind a number of attempts."""
SHORT = {ACCURACY_INCONCLUSIVE: "accuracy?"}
"""Outcome -> what stands in the picture, where room is scarce; the table below has the words."""
WAS_BUSY = (
    "Other programs used the machine meanwhile: times may come out otherwise when it is quiet."
)
CONFIRMED_ON = {
    FRESH: ", on the model saved and loaded in a fresh process",
    RELOADED: ", on the model saved and loaded again",
    IN_MEMORY: ", on the model in memory (not saved and loaded)",
    "": "",
}
"""Which model a confirmation is of -> how that is said; nothing in what earlier versions kept."""


# ---------------------------------------------------------------- the verdict


def headline(optimization: Optimization) -> str:
    """Say in one sentence what helps, and how much; or that nothing does, with the evidence."""
    best, name = optimization.recommended, optimization.name
    if best is None:
        return f"{name}: {_nothing_helps(optimization)}."
    words = ", ".join(attempt_phrases(best, optimization.settings.goal))
    doubt = f" {WAS_BUSY}" if optimization.was_busy else ""
    how = f"{best.name} ({', '.join(best.changes_process)})" if best.changes_process else best.name
    if best.outcome == BETTER:
        return f"{name}: {how} makes it {words}.{doubt}"
    return f"{name}: {how} keeps to the limits; it is {words}.{doubt}"


def verdict_word(optimization: Optimization) -> str:
    """Say in a word or two what came of it."""
    best, goal = optimization.recommended, optimization.settings.goal
    if best is None:
        if optimization.refuted:
            return "Not confirmed"
        if optimization.inconclusive:
            return "Accuracy inconclusive"
        if optimization.helped:
            return "Nothing keeps to the limits"
        if optimization.lacked_time:
            return "Not known yet"
        if not optimization.was_judged:
            return "Nothing could be judged" if optimization.attempts else "Nothing was tried"
        return "Nothing helps"
    if best.outcome != BETTER:
        return "Keeps to the limits"
    value = value_at(goal, best.measured)
    assert value is not None, "what is recommended was ranked by it"
    return f"{ratio_text(value.inverse.value)} {AIMS[goal]}"


def confirmation_lines(optimization: Optimization) -> list[str]:
    """Say whether what was chosen was measured again, and what did not hold when it was.

    The best of many looks better than it is when it is chosen.
    """
    goal, chosen = optimization.settings.goal, optimization.chosen
    lines = [
        f"{tried.name} seemed to be {attempt_phrases(tried, goal)[0]} when it was tried, but that "
        f"is not confirmed: measured again it is {_again(again, goal)}."
        for tried, again in optimization.refuted
    ]
    if chosen is None:
        return lines
    if optimization.confirmation is None:
        return [
            *lines,
            "This is not confirmed: it was not measured again after it was chosen, and the best "
            "of several looks better than it is.",
        ]
    before = attempt_phrases(chosen, goal)[0]
    return [
        *lines,
        f"Confirmed: this was measured again, after it was chosen"
        f"{CONFIRMED_ON[optimization.confirmation.confirmed_on]}. When it was tried: {before}.",
    ]


def beside_lines(optimization: Optimization) -> list[str]:
    """Say what stands beside the headline: both timings on a device, inference mode alone."""
    best = optimization.recommended
    found = best.comparison if best else None
    if best is None or found is None:
        return []
    lines = []
    if found.latency_ratio and found.throughput_ratio:
        single, sustained = ratio_text(1 / found.latency_ratio), ratio_text(found.throughput_ratio)
        lines.append(f"{CALLS[LATENCY]}: {single}; {CALLS[THROUGHPUT]}: {sustained}.".capitalize())
    alone = next((x for x in optimization.attempts if x.stack == (INFERENCE_MODE,)), None)
    if alone is not None and alone.comparison is not None and alone.stack != best.stack:
        lines.append(f"Inference mode alone: {speedup_text(alone.comparison)}.")
    return lines


def _again(confirmation: Attempt, goal: str) -> str:
    if confirmation.comparison is None:
        return f"{confirmation.outcome} ({confirmation.reason})"
    return attempt_phrases(confirmation, goal)[0]


def _nothing_helps(optimization: Optimization) -> str:
    goal, attempts = optimization.settings.goal, optimization.attempts
    if not attempts:
        return "nothing was tried, so nothing is known"
    if optimization.refuted:
        aim = f"nothing makes it {AIMS[goal]} for sure: the gain was not confirmed"
        return f"{aim}. Of {counted_outcomes(attempts)}"
    if optimization.inconclusive:
        return f"{_inconclusive(optimization)}. Of {counted_outcomes(attempts)}"
    aim = f"nothing that was tried makes it {AIMS[goal]}"
    if not optimization.was_judged:
        aim = "no attempt could be judged, so nothing is known"
    if optimization.helped:
        aim = "nothing that was tried keeps to the limits"
    counts = counted_outcomes(attempts)
    if late := len(optimization.lacked_time):
        untried = sum(each.outcome == NOT_TRIED for each in attempts)
        counts += f"; a larger budget tries {'the rest' if late == untried else f'{late} of these'}"
    best = optimization.ranked[0]
    if not best.is_acceptable or best.comparison is None:
        return f"{aim}. Of {counts}"
    return f"{aim}: the best, {best.name}, is {attempt_phrases(best, goal)[0]}. Of {counts}"


def _inconclusive(optimization: Optimization) -> str:
    """Say what may help, and that the examples are too few to tell whether accuracy is kept."""
    best = optimization.inconclusive[0]
    assert best.comparison is not None, "it was timed"
    accuracy = best.comparison.accuracy
    assert accuracy is not None, "it was scored"
    phrase = attempt_phrases(best, optimization.settings.goal)[0]
    cannot = f"{accuracy.n} examples cannot tell whether {accuracy.metric} is kept"
    return f"inconclusive: {best.name} is {phrase}, but {cannot}; {accuracy.remedy}"


def counted_outcomes(attempts: Sequence[Attempt]) -> str:
    """Count attempts by what came of them: ``7 attempts: 2 better, 1 failed, ...``."""
    counts = Counter(each.outcome for each in attempts)
    found = [f"{counts[name]} {words}" for name, words in PLURALS.items() if counts[name]]
    total = f"{len(attempts)} attempts" if len(attempts) > 1 else "1 attempt"
    return f"{total}: {', '.join(found)}"


# ---------------------------------------------------------------- rows and lines


def forest_plot(optimization: Optimization) -> ForestPlot | None:
    """Return a row for each attempt that was timed, the best at the goal first; None without."""
    timed = [(each, each.comparison) for each in optimization.ranked if each.comparison]
    if not timed:
        return None
    words = {each.name: SHORT.get(each.outcome, each.outcome) for each, _ in timed}
    widest = max(map(len, words.values()))
    rows = [
        speedup_row(
            each.name,
            found,
            f"{words[each.name]:<{widest}}  {speedup_text(found)}",
            TONES[each.outcome],
        )
        for each, found in timed
    ]
    return shared_plot(rows, [found for _, found in timed])


def reason_lines(optimization: Optimization) -> Iterator[tuple[Attempt, str]]:
    """Yield every attempt that has no row in the picture, or a doubt, with the reason in words."""
    for each in optimization.ranked:
        if each.comparison is None or each.outcome == ACCURACY_INCONCLUSIVE:
            yield each, f"{each.outcome}: {each.reason}" if each.reason else each.outcome
        elif each.comparison.contradiction:
            yield each, f"{each.outcome}: {each.comparison.contradiction}"


def limits_owner(optimization: Optimization) -> str:
    """Name the model whose limits are checked: the recommended one, or the baseline."""
    best = optimization.recommended
    return best.name if best else "the baseline"


def _milliseconds(value: float) -> str:
    return seconds_text(value / 1e3)


def _megabytes(value: float) -> str:
    return rate_text(value * 1e6, "B")


LIMIT_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "latency_ms": ("time of a call", _milliseconds),
    "memory_mb": ("peak memory", _megabytes),
    "size_mb": ("file on disk", _megabytes),
}
"""Name of a limit -> what it is about, and what writes it."""


def limit_line(check: LimitCheck) -> str:
    """Say whether a limit is kept: ``time of a call: 12.1 ms, at most 100 ms: kept``."""
    what, write = LIMIT_WORDS[check.limit]
    most = f"at most {write(check.most)}: {check.verdict}"
    found = check.found
    if found is None:
        return f"{what}: not measured, {most}"
    value = write(found.value)
    if found.low < found.high:
        value += f" ({range_text(found, write)})"
    return f"{what}: {value}, {most}"


def ablation_plot(optimization: Optimization) -> ForestPlot | None:
    """Return a row for every part of the best stack that was timed apart; None without any."""
    found = [(each.part, each.comparison) for each in optimization.ablation if each.comparison]
    if not found:
        return None
    rows = [
        speedup_row(part, each, speedup_text(each), VERDICT_TONES[each.verdict])
        for part, each in found
    ]
    return shared_plot(rows, [each for _, each in found])


def metric_of(optimization: Optimization) -> str:
    """Name what scores are: what `evaluate` calls it, or accuracy where there are none."""
    compared = [each.comparison for each in optimization.attempts if each.comparison]
    return next((each.accuracy.metric for each in compared if each.accuracy), "accuracy")


def contribution_words(contribution: Contribution) -> str:
    """Say what a part of the best stack brings: ``1.31x (1.28x to 1.35x): faster``."""
    found = contribution.comparison
    if found is None:
        return f"not measured: {contribution.reason}"
    return ", ".join([f"{speedup_text(found)}: {found.verdict}", *_byte_shares(found)])


def _byte_shares(comparison: Comparison) -> Iterator[str]:
    found = measured_by(comparison)
    for name, share in (("parameters and live tensors", found.memory), ("file", found.size)):
        if share is not None:
            yield f"{percent_text(share.value)} of the {name}"


# ---------------------------------------------------------------- in brief: what it costs, how to
# use it, what to do next

MARGINS = 2
"""A margin so many times as wide is proposed where the given one cannot be decided."""
FAST = 'pip install ".[fast]"'
EXPLAINED = frozenset({SKIPPED, FAILED, INACCURATE})
LONGEST_REASON = 120
"""Outcomes whose first reason is said in brief, where it is not longer than this."""
SEVERAL = 2
"""Attempts of an outcome that are named in brief, without a row."""


def brief_facts(
    optimization: Optimization, *, hidden: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield what was not timed, what the recommended model costs, how to use it, what is next.

    `hidden` names what was timed and has no row.
    """
    if rest := _without_row(optimization, hidden):
        yield "else", rest
    if costs := [*_costs(optimization)]:
        yield "cost", "; ".join(costs)
    if optimization.recommended is None or optimization.confirmation is None:
        yield from (("doubt", each) for each in confirmation_lines(optimization))
    yield from (("limit", limit_line(each)) for each in optimization.limit_checks)
    if optimization.recommended is not None and optimization.process is None:  # else it is written
        save = "--save best" if _target(optimization) else '.save("best")'
        yield "use", f"{save} writes it, {loading_words(optimization, 'best')} loads it"
    for step in next_steps(optimization):
        yield "next", step


def loading_words(optimization: Optimization, path: str) -> str:
    """Return the Python that loads what is saved at this path."""
    target = _target(optimization)
    is_whole = target in ZOO or target.startswith(HF)  # the file says how the model is built
    how = "" if is_whole else f', "{target}"' if target else ", model"
    return f'load_optimized("{path}"{how})'


def _target(optimization: Optimization) -> str:
    """Return what a command calls the model; "" for one that was given in Python."""
    return optimization.target or (optimization.name if optimization.name in ZOO else "")


def _without_row(optimization: Optimization, hidden: Sequence[str]) -> str:
    """Name the first of each outcome, and count the others."""
    groups: dict[str, list[str]] = {"timed as well": [*hidden]} if hidden else {}
    reasons_of: dict[str, str] = {}
    for each in optimization.ranked:
        if each.comparison is None:
            groups.setdefault(each.outcome, []).append(each.name)
            reasons_of.setdefault(each.outcome, each.reason)
    said = []
    for outcome, names in groups.items():
        shown = ", ".join(names[:SEVERAL])
        more = len(names) - SEVERAL
        why = reasons_of.get(outcome, "")
        why = f" ({why})" if outcome in EXPLAINED and 0 < len(why) <= LONGEST_REASON else ""
        said.append(f"{outcome}: {shown}{f' and {more} more' if more > 0 else ''}{why}")
    return "; ".join(said)


def _costs(optimization: Optimization) -> Iterator[str]:
    """Yield accuracy, memory, size and setup time of the recommended model."""
    best = optimization.recommended
    if best is None or best.comparison is None:
        return
    accuracy = best.comparison.accuracy
    if accuracy is not None:
        margin = difference_text(accuracy, accuracy.margin, sign=False)
        low = difference_text(accuracy, accuracy.low)
        yield f"{accuracy.metric} {accuracy.verdict} (at least {low}, margin {margin})"
    for share, name in ((best.measured.memory, "memory"), (best.measured.size, "file")):
        if is_more(share):
            yield f"{share_text(share)} of the {name}"
    if best.once_s:
        yield f"setup time {seconds_text(best.once_s)}"
    yield from best.changes_process


def next_steps(optimization: Optimization) -> Iterator[str]:
    """Yield commands and amounts that may bring more: a budget, examples, a margin, an extra."""
    settings, target = optimization.settings, _target(optimization)
    if optimization.inconclusive and optimization.recommended is None:
        first = optimization.inconclusive[0]
        accuracy = first.comparison.accuracy if first.comparison else None
        if accuracy is not None and accuracy.remedy:
            wider = MARGINS * settings.max_accuracy_drop
            option = f"--max-accuracy-drop {wider:g}" if target else f"max_accuracy_drop={wider:g}"
            yield f"{first.name}: {accuracy.remedy}; or accept {option}"
    if late := len(optimization.lacked_time):
        tried = max(1, len(optimization.attempts) - late)
        needed = math.ceil(optimization.seconds * (1 + late / tried) / 10) * 10
        option = f"--budget {needed}" if target else f"budget_s={needed}"
        yield f"{option} tries the other {late}, at the pace so far"
    if optimization.framework == "core" and not _has_compiled_kernels(optimization):
        yield f"{FAST}: compiled kernels, also for 8-bit products"
    if target and optimization.recommended is None and optimization.was_judged:
        yield f"tinytorch profile {target}: where the time goes"


def _has_compiled_kernels(optimization: Optimization) -> bool:
    libraries = optimization.environment.get("libraries")
    return isinstance(libraries, Mapping) and "numba" in libraries


# ---------------------------------------------------------------- why, and what to doubt


def asked_words(optimization: Optimization) -> str:
    """Say what was asked for, and how much was tried in which time."""
    count, helped = len(optimization.attempts), len(optimization.helped)
    untried = sum(each.outcome == NOT_TRIED for each in optimization.attempts)
    made = f"{count - untried} of {count}" if untried else f"{count}"
    tried = f"{made} attempt{'' if count == 1 else 's'} in {seconds_text(optimization.seconds)}"
    if helped and count > 1:
        tried += f", {helped} of them better"
    where = f"{optimization.framework} on {optimization.device}"
    return f"{where}; goal {optimization.settings.goal}; {tried}"


def why_slow(optimization: Optimization) -> list[str]:
    """Return the sentences that say why the model as it was takes its time."""
    profile = optimization.profile
    if profile is not None:
        return list(reasons(profile, find_facts(profile)))
    facts = optimization.profile_summary.get("facts") or {}
    found, device = facts.get("bottleneck"), facts.get("device")
    sentences = [_kept_bottleneck(found)] if found else []
    if device:
        kept = DeviceFacts(**{each.name: device.get(each.name) for each in fields(DeviceFacts)})
        sentences.insert(0 if mostly_waits(kept) else len(sentences), device_sentence(kept))
    return sentences


def _kept_bottleneck(found: Mapping[str, Any]) -> str:
    """Say what the summary of a profile still knows."""
    many = f"{len(found['layers'])}x " if len(found["layers"]) > 1 else ""
    name = found["name"] or "The model itself"
    text = f"{name} ({many}{found['kind']}) takes {percent_text(found['share'])} of the time itself"
    bound = f"; it is {found['bound']}-bound" if found["bound"] else ""
    return f"{text}{bound}."


def every_note(optimization: Optimization) -> list[str]:
    """Return what to doubt, and what could not be measured; what holds for several is said once."""
    return [*leading_notes(optimization), *timing_notes(optimization)]


def leading_notes(optimization: Optimization) -> list[str]:
    """Return the notes about the workload and about how candidates were judged."""
    return [*optimization.notes, *_of_all(optimization, lambda attempt: attempt.notes)]


def timing_notes(optimization: Optimization) -> list[str]:
    """Return the notes about how times, bytes and outputs were measured."""
    return _of_all(optimization, _notes_of_comparison)


def _of_all(optimization: Optimization, notes_of: Callable[[Attempt], Sequence[str]]) -> list[str]:
    notes = [(each.name, note) for each in optimization.attempts for note in notes_of(each)]
    known = {without_numbers(note) for _, note in notes}
    notes += [
        (f"{each.name}, measured again", note)
        for each in optimization.confirmations
        for note in notes_of(each)
        if without_numbers(note) not in known
    ]
    timed = sum(each.comparison is not None for each in optimization.attempts)
    return notes_once(notes, total=timed, every="all that was timed")


def _notes_of_comparison(attempt: Attempt) -> list[str]:
    if attempt.comparison is None:
        return []
    found = attempt.comparison.named(BASELINE, CANDIDATE)  # the line begins with its name
    shown_elsewhere = (*attempt.notes, attempt.comparison.contradiction, found.contradiction)
    notes = [each for each in note_lines(found) if each not in shown_elsewhere]
    notes += [f"not measured: {each}" for each in missing_lines(found)]
    return list(dict.fromkeys(notes))
