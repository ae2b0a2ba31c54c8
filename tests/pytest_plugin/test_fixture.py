import json

import pytest
from inner_pytest import InnerPytest

from tinytorch.comparison import compare  # noqa: F401  kept when runs inside of tests are over
from tinytorch.pytest_plugin import summary  # noqa: F401

pytest_plugins = ["pytester"]

QUICK = ("--perf", "--perf-budget", "0.02")
MEASURING = """
    calls = []

    def double(x, *, plus=0):
        calls.append(x)
        return 2 * x + plus

    def test_double(perf):
        assert perf(double, 4, plus=1) == 9
        {after}
"""


@pytest.fixture
def inner(pytester, monkeypatch):
    return InnerPytest(pytester, monkeypatch)


COMPARED = """
    import numpy as np
    import pytest
    from example_comparisons import comparison, unevaluated
    from tinytorch.comparison import compare as comparer
    from tinytorch.comparison.accuracy import compare_accuracy
    from tinytorch.comparison.outputs import compare_outputs

    pytestmark = pytest.mark.filterwarnings("error")
    asked = {{}}

    @pytest.fixture(autouse=True)
    def _found(monkeypatch):
        def compare(*sides, **settings):
            asked.update(settings, sides=sides)
            return {found}
        monkeypatch.setattr(comparer, "compare", compare)

    {body}
"""


def compared_as(found, body):
    """Give tests in which the comparer finds what we say, however fast the machine is."""
    return COMPARED.format(found=found, body=body)


def test_off_a_function_is_called_once(inner):
    ran = inner.run(MEASURING.format(after="assert calls == [4]; assert perf.samples is None"))
    ran.assert_outcomes(passed=1)
    ran.stdout.no_fnmatch_line("*perf:*")


def test_on_it_is_called_again_and_again_and_gives_its_result(inner):
    after = "assert len(calls) > 10; assert perf.samples.count >= 5"
    ran = inner.run(MEASURING.format(after=after), *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perf: measuring, 0.02 s a test", "*- perf: 1 test -*"])


def test_off_a_comparison_is_skipped_with_the_reason(inner):
    source = """
    def test_compare(perf):
        perf.compare(list, dict)
    def test_not_slower(perf):
        perf.assert_not_slower(list, dict)
    """
    ran = inner.run(source, "-rs")
    ran.assert_outcomes(skipped=2)
    ran.stdout.fnmatch_lines(["SKIPPED*comparing takes time and is off; give --perf"])


def test_two_functions_are_compared(inner):
    source = """
    def test_much_less(perf):
        found = perf.compare(lambda: sum(range(20000)), lambda: sum(range(100)), evidence=False)
        assert found.verdict == "faster"
    """
    ran = inner.run(source, *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*perf: 1 compared*", "test_much_less*faster*"])


def test_settings_come_from_option_marker_and_call_in_this_order(inner):
    body = """@pytest.mark.perf(budget_s=0.5, band=0.03, group="x", runs=3)
    def test_it(perf):
        perf.compare("a", "b", band=0.04)
        assert asked == {"budget_s": 0.5, "band": 0.04, "sides": ("a", "b")}

    def test_other(perf):
        asked.clear()
        perf.compare("a", "b")
        assert asked == {"budget_s": 0.02, "sides": ("a", "b")}
    """
    inner.run(compared_as("comparison(0.8)", body), *QUICK).assert_outcomes(passed=2)


NOT_SLOWER = "def test_it(perf): perf.assert_not_slower('a', 'b'{more})"


def test_a_slowdown_beyond_the_tolerance_fails(inner):
    ran = inner.run(compared_as("comparison(1.2)", NOT_SLOWER.format(more="")), *QUICK)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["*Failed: candidate is slower than baseline: 1.20x the time (*), n=13*tolerance 5%"]
    )


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.04])
def test_what_is_within_the_tolerance_passes(inner, ratio):
    found = f"comparison({ratio}, spread=0.001)"
    ran = inner.run(compared_as(found, NOT_SLOWER.format(more="")), *QUICK)
    ran.assert_outcomes(passed=1)


def test_a_tolerance_is_a_share(inner):
    ran = inner.run(compared_as("comparison(1.0)", NOT_SLOWER.format(more=", tolerance=5")), *QUICK)
    ran.assert_outcomes(passed=1)
    ran = inner.run(
        compared_as("comparison(1.0)", NOT_SLOWER.format(more=", tolerance=50")), *QUICK
    )
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*SettingError: tolerance=50; it must be a share such as 0.05"])


def test_what_is_not_shown_is_named_and_fails_only_when_strict(inner):
    source = compared_as("comparison(1.05, spread=0.1)", NOT_SLOWER.format(more=""))
    ran = inner.run(source, *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["test_it.py::test_it: time is inconclusive: *tolerance 5%"])
    ran = inner.again(*QUICK, "--perf-strict")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*--perf-strict makes that a failure"])


def test_a_loss_of_accuracy_fails_whatever_the_speed(inner):
    found = "comparison(0.1, accuracy=compare_accuracy([1] * 400, [1, 0] * 200))"
    ran = inner.run(compared_as(found, NOT_SLOWER.format(more="")), *QUICK)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*candidate is less accurate than baseline: 0.5 against 1"])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            "comparison(0.1, outputs=compare_outputs([np.ones(3)], [np.full(3, np.nan)]))",
            "*Failed: candidate gives broken outputs: 3 of 3 values are not finite*",
        ),
        (
            "comparison(0.1, outputs=compare_outputs([np.ones(3)], [np.ones(4)]))",
            "*Failed: candidate gives broken outputs: output 0 has shape*",
        ),
        (
            "comparison(0.1, not_measured=unevaluated())",
            "*Failed: candidate could not be evaluated: X",
        ),
    ],
)
def test_a_candidate_that_is_broken_fails_whatever_the_speed(inner, found, message):
    ran = inner.run(compared_as(found, NOT_SLOWER.format(more="")), *QUICK)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            "comparison(0.1, accuracy=compare_accuracy([1, 0] * 6, [0, 1] * 6))",
            "accuracy is inconclusive: *",
        ),
        (
            "comparison(0.1, not_measured=unevaluated('baseline'))",
            "accuracy could not be compared: baseline could not be evaluated: X*",
        ),
    ],
)
def test_an_accuracy_that_is_not_shown_is_named_and_fails_only_when_strict(inner, found, message):
    ran = inner.run(compared_as(found, NOT_SLOWER.format(more="")), *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines([f"test_it.py::test_it: {message}"])
    ran = inner.again(*QUICK, "--perf-strict")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([f"*Failed: {message}--perf-strict makes that a failure"])


def test_a_function_that_computes_nothing_yet_is_refused(inner):
    source = """
    async def later(): pass
    def test_later(perf):
        perf(later)
    """
    ran = inner.run(source, *QUICK)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*ModelError: later returned a coroutine*"])


def test_what_the_function_raises_is_the_failure_of_the_test(inner):
    source = """
    def test_divide(perf):
        perf(divmod, 1, 0)
    """
    for words in ((), QUICK):
        ran = inner.run(source, *words)
        ran.assert_outcomes(failed=1)
        ran.stdout.fnmatch_lines(["*ZeroDivisionError*"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("perf(budgets=1)", "*the marker perf has no 'budgets'; did you mean 'budget_s'?*"),
        ("perf(1)", "*the marker perf takes settings by name only*"),
    ],
)
def test_a_marker_that_is_wrong_is_an_error(inner, marker, message):
    source = f"""
    import pytest
    @pytest.mark.{marker}
    def test_it(perf): pass
    """
    ran = inner.run(source, "--strict-markers")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines([message])


def test_several_measurements_of_a_test_have_names_of_their_own(inner):
    source = """
    def test_two(perf):
        perf(sum, [1]); perf(max, [1])
    """
    inner.run(source, *QUICK, "--perf-json", "out.json").assert_outcomes(passed=1)
    written = json.loads((inner.pytester.path / "out.json").read_text("utf-8"))
    names = [test["name"] for test in written["tests"]]
    assert names == ["test_it.py::test_two", "test_it.py::test_two (2)"]


def test_a_watcher_is_named(inner):
    source = """
    import sys
    def test_watched(perf):
        earlier = sys.gettrace()
        sys.settrace(lambda *_: None)
        try:
            perf(sum, [1])
        finally:
            sys.settrace(earlier)
    """
    ran = inner.run(source, *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["- coverage or a debugger was active*(test_watched)"])
