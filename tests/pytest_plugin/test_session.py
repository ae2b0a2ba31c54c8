import json

import pytest
from example_records import record
from inner_pytest import InnerPytest

from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.records.record import Record
from tinytorch.records.store import open_store

pytest_plugins = ["pytester"]

QUICK = ("--perf", "--perf-budget", "0.01")
ONE = """
def test_one(perf):
    assert perf(sum, [1, 2]) == 3
"""


@pytest.fixture
def inner(pytester, monkeypatch):
    return InnerPytest(pytester, monkeypatch)


@pytest.fixture
def stored(inner):
    """Read what is in the store of the inner runs."""

    def read():
        with open_store(inner.pytester.path / "records.sqlite") as store:
            return store.find()

    return read


def put(inner, *records):
    with open_store(inner.pytester.path / "records.sqlite") as store:
        store.add_all(records)


def earlier(value, **changes):
    """Give a record of the same test, machine and settings, with one value."""
    fields = {
        "kind": "test",
        "name": "test_it.py::test_one",
        "samples": {"latency": Samples("latency", (value,))},
        "environment": describe_environment().to_dict(),
        "settings": {"measured by": "tinytorch", "budget_s": 0.01, "clock": "wall"},
        "created_at": "2026-01-01",
    }
    return Record(**(fields | changes))


def test_what_passed_is_kept_with_its_raw_values(inner, stored):
    ran = inner.run(ONE, *QUICK, "--perf-save")
    ran.stdout.fnmatch_lines(["perf: 1 record kept, run *"])
    (kept,) = stored()
    assert (kept.kind, kept.name) == ("test", "test_it.py::test_one")
    assert kept.samples["latency"].count >= 5
    assert kept.settings["budget_s"] == 0.01
    assert kept.run


def test_records_of_one_run_share_its_name(inner, stored):
    source = """
    import pytest
    @pytest.mark.parametrize("n", [1, 2])
    def test_one(perf, n):
        perf(sum, [n])
    def test_two(perf):
        perf.compare(list, dict, evidence=False)
    """
    inner.run(source, *QUICK, "--perf-save").assert_outcomes(passed=3)
    kept = stored()
    assert len({each.run for each in kept}) == 1
    assert {each.name.rpartition("::")[2] for each in kept} == {
        "test_one[1]",
        "test_one[2]",
        "test_two",
    }
    assert "time ratio" in kept[-1].samples


def test_a_test_that_fails_is_not_kept(inner, stored):
    ran = inner.run("def test_one(perf): assert perf(sum, [1]) == 7", *QUICK, "--perf-save")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["left out, since the test did not pass: test_one"])
    ran.stdout.no_fnmatch_line("*record kept*")


def test_a_comparison_of_a_test_that_fails_is_shown_but_not_kept(inner, stored):
    source = """
    def test_good(perf):
        perf.compare(list, dict, evidence=False)
    def test_bad(perf):
        perf.compare(list, dict, evidence=False)
        assert False
    """
    words = ("--perf-save", "--perf-json", "out.json")
    ran = inner.run(source, *QUICK, *words)
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(
        [
            "*perf: 2 compared*",
            "test_good *",
            "test_bad *",
            "compared in a test that did not pass and not kept: test_bad",
            "perf: 1 record kept, run *",
        ]
    )
    assert [each.name for each in stored()] == ["test_it.py::test_good"]
    written = json.loads((inner.pytester.path / "out.json").read_text("utf-8"))
    assert [each["has_passed"] for each in written["comparisons"]] == [True, False]


def test_a_store_that_cannot_be_written_loses_nothing(inner, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (inner.pytester.path / "records.sqlite").write_text("no database" * 100, "utf-8")
    ran = inner.run(ONE, *QUICK, "--perf-save")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perf: the result was not stored: *it is in *"])


def test_the_last_run_is_the_newest_other_one(inner):
    put(inner, earlier(1e-3), earlier(2.0, created_at="2026-01-02"))
    ran = inner.run(ONE, *QUICK, "--perf-compare", "--perf-save")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["test_it.py::test_one: *x the time of 2.00 s (2026-01-02*", "Weak evidence*"]
    )


def test_a_hash_names_the_run_to_compare_with(inner):
    chosen = earlier(1e-3, run="first")
    put(inner, chosen, earlier(2.0, created_at="2026-01-02"))
    ran = inner.run(ONE, *QUICK, f"--perf-compare={chosen.hash[:8]}")
    ran.stdout.fnmatch_lines(
        [f"*x the time of 1.00 ms (2026-01-01 00:00, record {chosen.hash[:12]}*"]
    )
    ran = inner.again(*QUICK, "--perf-compare=00000000")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR


def test_an_older_record_that_fits_is_better_than_a_newer_that_does_not(inner):
    unlike = record(name="test_it.py::test_one", kind="test", hours=10_000)
    put(inner, earlier(1e-3), unlike)
    ran = inner.run(ONE, *QUICK, "--perf-compare")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*x the time of 1.00 ms*"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"settings": {"measured by": "tinytorch", "budget_s": 9, "clock": "wall"}},
            "*budget_s 9*",
        ),
        (
            {"environment": {**record().environment, "fingerprint": "elsewhere"}},
            "*not comparable: machine: *",
        ),
        ({"name": "test_it.py::test_other"}, "*no stored record of this test"),
    ],
)
def test_unlike_records_are_never_compared(inner, changes, reason):
    put(inner, earlier(1e-3, **changes))
    ran = inner.run(ONE, *QUICK, "--perf-compare")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines([reason])
    ran.stdout.no_fnmatch_line("*the time of*")


def test_nothing_stored_is_said(inner):
    ran = inner.run(ONE, *QUICK, "--perf-compare")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perf: nothing to compare with: there is no *; --perf-save fills it"])


def test_json_is_strict_and_has_everything(inner):
    ran = inner.run(ONE, *QUICK, "--perf-json", "out.json")
    ran.stdout.fnmatch_lines(["perf: wrote out.json"])
    text = (inner.pytester.path / "out.json").read_text("utf-8")
    written = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    (test,) = written["tests"]
    assert test["function"] == "test_one"
    assert test["samples"]["unit"] == "s"
    assert min(test["samples"]["values"]) <= test["median"]
    assert written["environment"]["fingerprint"]
    assert written["comparisons"] == written["against"] == []


def test_a_file_that_cannot_be_written_fails_the_run(inner, monkeypatch):
    def no_room(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tinytorch.core.files.write_atomically", no_room)
    ran = inner.run(ONE, *QUICK, "--perf-json", "out.json")
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    ran.stdout.fnmatch_lines(["perf: error: *No space left on device"])


def test_a_run_that_measures_nothing_has_no_summary(inner):
    ran = inner.run("def test_plain(): pass", *QUICK)
    ran.assert_outcomes(passed=1)
    ran.stdout.no_fnmatch_line("*- perf*")
