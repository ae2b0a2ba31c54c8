from dataclasses import replace

import pytest
from example_comparisons import comparison, contradictory, unevaluated
from example_optimizations import attempt, inconclusive, measured, optimization
from example_profiles import example_profile
from reported_optimizations import (
    best_is_a_stack,
    limits_broken,
    nothing_helps,
    nothing_tried,
    nothing_worked,
    timed,
)

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.sequential import TimedRounds
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate
from tinytorch.measure.samples import Samples
from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.optimization_words import (
    ablation_plot,
    asked_words,
    beside_lines,
    confirmation_lines,
    contribution_words,
    every_note,
    forest_plot,
    headline,
    limit_line,
    limits_owner,
    loading_words,
    metric_of,
    reason_lines,
    timing_notes,
    verdict_word,
    why_slow,
)
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.attempt import (
    FAILED,
    IN_MEMORY,
    NOT_TRIED,
    OUT_OF_TIME,
    RELOADED,
    WORSE,
    Attempt,
    LimitCheck,
    Settings,
)
from tinytorch.tuning.optimization import Contribution, Optimization


def test_the_verdict_is_one_sentence_with_the_numbers():
    assert headline(best_is_a_stack()) == (
        "gpt: int8-dynamic + compiled-kernels makes it 2.50x faster (2.49x to 2.51x), 2.00x "
        "smaller in parameters and live tensors, 4.00x smaller on disk, as accurate "
        "(75.00% to 74.85%)."
    )
    assert verdict_word(best_is_a_stack()) == "2.50x faster"


def test_what_changes_the_process_says_so_in_the_headline():
    found = best_is_a_stack()
    best = found.recommended
    plan = Plan("Anything", {}, (), changes_process="sets 1 thread for the whole process")
    changed = replace(best, plans=(*best.plans, plan, plan))
    others = [each for each in found.attempts if each.stack != best.stack]
    told = replace(found, attempts=(changed, *others))
    assert changed.to_dict()["changes_process"] == ["sets 1 thread for the whole process"]
    assert f"{best.name} (sets 1 thread for the whole process) makes it" in headline(told)


def test_the_goal_decides_what_is_said_first():
    found = best_is_a_stack(settings=Settings(goal="size"))
    assert verdict_word(found) == "4.00x smaller on disk"
    assert " makes it 4.00x smaller on disk, " in headline(found)


def test_that_nothing_helps_is_said_with_the_evidence():
    assert headline(nothing_helps()) == (
        "gpt: nothing that was tried makes it faster: the best, fused-layers, is as fast (0.999x "
        "to 1.001x). Of 7 attempts: 1 without a gain, 1 worse, 1 inaccurate, 1 broken, 1 failed, "
        "1 skipped, 1 not tried."
    )
    assert verdict_word(nothing_helps()) == "Nothing helps"


def test_that_nothing_worked_is_said():
    assert headline(nothing_worked()).startswith(
        "gpt: nothing that was tried makes it faster. Of 5 attempts: 1 inaccurate, 1 broken"
    )


def test_without_attempts_nothing_is_claimed():
    assert headline(nothing_tried()) == "gpt: nothing was tried, so nothing is known."
    assert verdict_word(nothing_tried()) == "Nothing was tried"
    assert asked_words(nothing_tried()).endswith("; 0 attempts in 1 min 2 s")


def test_a_gain_beyond_the_limits_is_no_recommendation():
    found = limits_broken()
    assert "nothing that was tried keeps to the limits: the best, int8-" in headline(found)
    assert verdict_word(found) == "Nothing keeps to the limits"
    assert limits_owner(found) == "the baseline"


def test_what_keeps_to_the_limits_may_be_slower():
    attempt = timed("low-rank", ratio=1.25, memory=0.5, outcome=WORSE)
    found = best_is_a_stack(attempts=(attempt,), settings=Settings(limits={"memory_mb": 0.005}))
    assert headline(found).startswith("gpt: low-rank keeps to the limits; it is slower (")
    assert verdict_word(found) == "Keeps to the limits"
    assert limits_owner(found) == "low-rank"


def test_limits_are_written_with_their_units():
    checks = [limit_line(each) for each in limits_broken().limit_checks]
    assert checks == [
        "time of a call: 1.00 ms, at most 100 us: broken",
        "peak memory: 8.00 kB, at most 6.00 kB: broken",
        "file on disk: 5.00 kB, at most 1.00 MB: kept",
    ]


def test_a_limit_has_the_interval_or_no_number():
    between = LimitCheck("latency_ms", 10.0, Estimate(9.5, 9.0, 11.0), "inconclusive")
    assert limit_line(between) == (
        "time of a call: 9.50 ms (9.00 ms to 11.0 ms), at most 10.0 ms: inconclusive"
    )
    unknown = LimitCheck("size_mb", 10.0, None, "inconclusive")
    assert limit_line(unknown) == "file on disk: not measured, at most 10.0 MB: inconclusive"


def test_the_picture_has_what_was_timed_the_best_first():
    plot = forest_plot(best_is_a_stack())
    assert [row.label for row in plot.rows] == [
        "int8-dynamic + compiled-kernels",
        "int8-dynamic",
        "compiled-kernels",
        "captured",
        "fused-layers",
        "channels-last",
    ]
    assert plot.rows[0].tone == "good"
    assert plot.rows[-1].tone == "bad"
    assert plot.rows[3].text.startswith("inconclusive  1.03")
    assert forest_plot(nothing_worked()) is None


def test_the_picture_of_the_parts_has_what_was_timed():
    plot = ablation_plot(best_is_a_stack())
    assert [row.label for row in plot.rows] == ["int8-dynamic"]
    assert plot.rows[0].value == pytest.approx(2.0)
    assert ablation_plot(nothing_helps()) is None


def test_a_part_that_was_not_measured_says_why():
    words = [contribution_words(each) for each in best_is_a_stack().ablation]
    assert words == ["2.00x (1.99x to 2.01x): faster", "not measured: the budget is spent"]


def test_everything_that_was_not_timed_has_its_reason():
    found = {each.name: words for each, words in reason_lines(best_is_a_stack())}
    assert found == {
        "low-rank": "inaccurate: accuracy 0.75 became 0.61",
        "int4-weights": "broken: 3 of 80 values are not finite in output 0",
        "threads": "failed: RuntimeError: no threads",
        "fewer-layers": "skipped: RemoveLayers: no blocks",
        "fewer-channels": "not tried: the budget is spent",
    }


def test_a_contradiction_is_said():
    odd = Attempt(("odd",), INCONCLUSIVE, "", comparison=contradictory())
    ((attempt, words),) = reason_lines(best_is_a_stack(attempts=(odd,)))
    assert attempt.name == "odd"
    assert "rare slow calls" in words


def test_a_failure_without_words_is_still_a_failure():
    silent = Attempt(("silent",), FAILED, "")
    ((_, words),) = reason_lines(best_is_a_stack(attempts=(silent,)))
    assert words == "failed"


def test_the_reason_comes_from_the_profile():
    assert why_slow(best_is_a_stack())[0].startswith("blocks.*.fc (2x Linear): 40.0%")


def test_what_was_read_back_still_knows_the_bottleneck():
    kept = Optimization.from_dict(best_is_a_stack().to_dict())
    assert kept.profile is None
    assert why_slow(kept) == [
        "blocks.*.fc (2x Linear) takes 40.0% of the time itself; it is memory-bound."
    ]
    assert why_slow(replace(kept, profile_summary={})) == []


@pytest.mark.parametrize(("busy_s", "place"), [(0.004, 0), (0.009, 1)])
def test_what_was_read_back_still_knows_how_long_the_device_waits(busy_s, place):
    """Where it waits most of the time, that is said first: shares are of kernels alone."""
    samples = {"device_time": (0.008,) * 4, "busy": (busy_s,) * 4}
    profile = example_profile(device="cuda:0", **{x: Samples(x, y) for x, y in samples.items()})
    kept = replace(best_is_a_stack(), profile=None, profile_summary=profile.to_dict())
    waiting = f"the device is idle {100 - busy_s / 0.01 * 100:.1f}% of the time"
    assert waiting in why_slow(kept)[place]


def test_what_was_asked_is_said():
    words = asked_words(best_is_a_stack())
    assert words == "core on cpu; goal latency; 10 of 11 attempts in 1 min 2 s, 3 of them better"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", 'load_optimized("best", model)'),
        ("cnn", 'load_optimized("best")'),
        ("hf:folder", 'load_optimized("best")'),
        ("yours.py:make", 'load_optimized("best", "yours.py:make")'),
    ],
)
def test_how_to_load_it_needs_no_more_than_necessary(target, words):
    found = replace(best_is_a_stack(), name="classifier", target=target)
    assert loading_words(found, "best") == words


def test_notes_about_the_workload_come_before_those_about_timing():
    (first, *_) = best_is_a_stack().attempts
    noted = replace(
        first, notes=("judged by outputs",), comparison=first.comparison.with_notes("only 6 rounds")
    )
    found = replace(best_is_a_stack(attempts=(noted,)), notes=("random weights",))
    notes = every_note(found)
    assert notes[0] == "random weights"
    assert "judged by outputs" in notes[1]
    assert set(timing_notes(found)) < set(notes)
    assert "only 6 rounds" in timing_notes(found)[-1]


def test_notes_that_hold_for_several_are_said_once():
    attempts = best_is_a_stack().attempts[:3]
    noisy = [
        replace(each, comparison=replace(each.comparison, notes=(f"{place}% was stolen", "busy")))
        for place, each in enumerate(attempts)
    ]
    notes = every_note(best_is_a_stack(attempts=tuple(noisy)))
    assert "the machine is busy" in notes
    assert "all that was timed: busy" in notes
    assert "int8-dynamic: 0% was stolen; the like of 2 more" in notes
    assert len(notes) == len(set(notes))


def test_a_note_about_the_candidate_stands_behind_the_name_of_the_attempt():
    found = replace(contradictory(), notes=("candidate is not built anew",))
    found = found.with_notes(found.contradiction)  # which is shown elsewhere
    missing = unevaluated("candidate", "(evaluate) took longer than 2 s")
    found = replace(found, not_measured=missing).named("baseline", "compiled")
    attempt = Attempt(("compiled",), "better", "", comparison=found)
    assert every_note(optimization(attempt)) == [
        "compiled: candidate is not built anew",
        "compiled: not measured: accuracy: candidate (evaluate) took longer than 2 s",
    ]


def test_scores_have_the_name_of_their_metric():
    kept = compare_accuracy([2.0, 3.0] * 50, [2.0, 3.0] * 50, metric="reward", margin=1.0)
    (attempt,) = best_is_a_stack().attempts[:1]
    attempt = replace(attempt, comparison=replace(attempt.comparison, accuracy=kept))
    found = best_is_a_stack(attempts=(attempt,))
    assert metric_of(found) == "reward"
    for usual in (best_is_a_stack(), nothing_worked()):
        assert metric_of(usual) == "accuracy"


def test_a_part_says_what_it_brings_in_bytes_where_that_was_measured():
    words = contribution_words(Contribution("int8", measured(0.5, memory=0.25, size=0.3)))
    assert words.endswith(": faster, 25.0% of the parameters and live tensors, 30.0% of the file")
    assert contribution_words(Contribution("int8", comparison(0.5))).endswith(": faster")


# ---------------------------------------------------------------- measured again

STACK = ("int8-dynamic", "compiled-kernels")


def test_the_numbers_are_those_of_the_fresh_comparison():
    found = best_is_a_stack(confirmations=(timed(*STACK, ratio=0.5),))
    assert "makes it 2.00x faster (" in headline(found)
    assert verdict_word(found) == "2.00x faster"
    (line,) = confirmation_lines(found)
    assert line.startswith("Confirmed: this was measured again")
    assert "When it was tried: 2.50x faster (" in line


def test_it_is_said_whether_the_model_was_saved_and_loaded():
    again = timed(*STACK, ratio=0.5)
    lines = [
        confirmation_lines(best_is_a_stack(confirmations=(replace(again, confirmed_on=where),)))[0]
        for where in ("", RELOADED, IN_MEMORY)
    ]
    assert len(set(lines)) == 3
    assert "saved and loaded again" in lines[1]
    assert "in memory" in lines[2]


def test_that_nobody_measured_again_is_said():
    (line,) = confirmation_lines(best_is_a_stack())
    assert line.startswith("This is not confirmed")
    assert confirmation_lines(nothing_helps()) == []


def test_what_does_not_hold_is_told_with_both_numbers():
    again = (timed(*STACK, ratio=1.0, spread=0.002), timed("int8-dynamic", ratio=0.7))
    found = best_is_a_stack(confirmations=again)
    assert "int8-dynamic makes it 1.43x faster" in headline(found)
    refuted, confirmed = confirmation_lines(found)
    assert "seemed to be 2.50x faster" in refuted
    assert "measured again it is as fast (" in refuted
    assert confirmed.startswith("Confirmed")


def test_where_nothing_holds_nothing_is_promised():
    again = Attempt(STACK, FAILED, "RuntimeError: no compiler")
    found = best_is_a_stack(confirmations=(again,))
    assert verdict_word(found) == "Not confirmed"
    assert "the gain was not confirmed. Of 11 attempts" in headline(found)
    (line,) = confirmation_lines(found)
    assert line.endswith("measured again it is failed (RuntimeError: no compiler).")


def test_a_note_of_the_fresh_comparison_alone_is_not_lost():
    tried = timed(*STACK, ratio=0.5)
    odd = replace(tried, comparison=replace(tried.comparison, notes=("the fan is loud",)))
    notes = every_note(best_is_a_stack(confirmations=(odd,)))
    assert f"{' + '.join(STACK)}, measured again: the fan is loud" in notes


def test_what_lacked_time_is_not_known_yet():
    late = Attempt(("int8",), NOT_TRIED, "the budget of 20 s was spent before", code=OUT_OF_TIME)
    found = optimization(late)
    assert verdict_word(found) == "Not known yet"
    assert headline(found).endswith("1 not tried; a larger budget tries the rest.")


def test_a_larger_budget_is_promised_only_to_what_lacked_time():
    late = Attempt(("int8",), NOT_TRIED, "the budget of 20 s was spent before", code=OUT_OF_TIME)
    unjudged = [Attempt((name,), NOT_TRIED, "nobody can judge it") for name in ("a", "b")]
    assert headline(optimization(late, *unjudged)).endswith(
        "3 not tried; a larger budget tries 1 of these."
    )
    assert headline(optimization(*unjudged)).endswith("2 not tried.")


def test_a_busy_machine_is_part_of_the_verdict():
    busy = comparison(0.5, environment={"load_average": 6.1, "usable_cores": 2})
    found = optimization(Attempt(("int8",), "better", "", comparison=busy))
    assert headline(found).endswith("times may come out otherwise when it is quiet.")
    quiet = comparison(0.5, environment={"load_average": 2.4, "usable_cores": 2})
    calm = optimization(Attempt(("int8",), "better", "", comparison=quiet))
    assert "quiet" not in headline(calm)


# ---------------------------------------------------------------- what cannot be told


def test_an_inconclusive_accuracy_leads_where_nothing_is_recommended():
    tried = inconclusive("int8-static")
    found = optimization(tried, timed("threads", ratio=1.3))
    assert verdict_word(found) == "Accuracy inconclusive"
    words = headline(found)
    needed = str(tried.comparison.accuracy.examples_needed)
    for part in ("inconclusive: int8-static is 2.50x faster", "168 examples", needed):
        assert part in words
    assert "nothing" not in words
    assert {each.name: text for each, text in reason_lines(found)} == {
        "int8-static": f"accuracy inconclusive: {tried.reason}"
    }


def test_what_is_as_good_leads_before_what_is_inconclusive():
    found = optimization(inconclusive("int8-static"), timed("compiled", ratio=0.8))
    assert headline(found).startswith("example: compiled makes it 1.25x faster")
    assert [row.label for row in forest_plot(found).rows] == ["compiled", "int8-static"]


def test_that_everything_failed_is_not_that_nothing_helps():
    found = optimization(Attempt(("threads",), FAILED, "ValueError: labels"))
    assert verdict_word(found) == "Nothing could be judged"
    assert "makes it faster" not in headline(found)


# ---------------------------------------------------------------- beside the headline


def test_inference_mode_alone_stands_beside_a_stack_that_has_more():
    alone, stack = attempt("inference-mode", time=0.97), attempt("captured", time=0.5)
    (line,) = beside_lines(optimization(alone, stack))
    assert speedup_text(alone.comparison) in line
    assert beside_lines(optimization(stack)) == []
    assert beside_lines(optimization(alone)) == []


def test_both_timings_of_a_device_stand_beside_the_headline():
    single = measured(0.5)
    sustained = comparison(0.25)
    beside = TimedRounds(sustained.rounds, sustained.alpha, sustained.pace, 0.1, ())
    found = replace(single, is_on_device=True, beside=beside)
    stack = replace(attempt("captured", time=0.5), comparison=found)
    (line,) = beside_lines(optimization(stack))
    assert "2.00x" in line
    assert "4.00x" in line
