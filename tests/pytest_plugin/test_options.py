import subprocess
import sys

import pytest
from inner_pytest import InnerPytest
from parts import require_part
from project_files import ROOT

pytest_plugins = ["pytester"]

ONE = """
def test_one(perf):
    assert perf(sum, [1, 2]) == 3
"""
MEASURED = "*- perf: 1 test -*"


@pytest.fixture
def inner(pytester, monkeypatch):
    return InnerPytest(pytester, monkeypatch)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nperf = true\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nperf = true\n"),
        ("pyproject.toml", "[tool.tinytorch]\nperf = true\n"),
    ],
)
def test_settings_switch_it_on_and_an_option_off_again(inner, file, text):
    (inner.pytester.path / file).write_text(text, "utf-8")
    ran = inner.run(ONE, "--perf-budget", "0.01", f"--rootdir={inner.pytester.path}")
    ran.stdout.fnmatch_lines([MEASURED])
    ran = inner.again("--no-perf", f"--rootdir={inner.pytester.path}")
    ran.assert_outcomes(passed=1)
    ran.stdout.no_fnmatch_line(MEASURED)


def test_a_setting_that_is_neither_true_nor_false_is_refused(inner):
    (inner.pytester.path / "pyproject.toml").write_text("[tool.tinytorch]\nperf = 'x'\n", "utf-8")
    ran = inner.run(ONE, f"--rootdir={inner.pytester.path}")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*perf = 'x'; write true or false"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--perf-budget", "-1"], "*--perf-budget -1.0: measuring needs some seconds"),
        (["--perf-compare", "test_it.py"], "*write --perf-compare=last test_it.py"),
        (["--perf-compare=abcdef"], "*--perf-compare: there is no *records.sqlite*"),
        (["--perf-json", "nowhere/out.json"], "*--perf-json nowhere?out.json: it cannot*"),
        (["--perf-sort", "luck"], "*invalid choice: 'luck'*"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(inner, words, message):
    ran = inner.run(ONE, "--perf", *words)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([message])


def test_options_that_wait_for_perf_are_named(inner):
    ran = inner.run(ONE, "--perf-save")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perf: off, so --perf-save does nothing; add --perf"])
    assert not (inner.pytester.path / "records.sqlite").exists()


def test_strict_settings_and_warnings_as_errors_are_fine(inner):
    settings = "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"
    (inner.pytester.path / "pytest.ini").write_text(settings, "utf-8")
    source = "import pytest\n@pytest.mark.perf(budget_s=0.01)" + ONE
    ran = inner.run(source, "--perf", fresh=True)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines([MEASURED])
    ran.stdout.no_fnmatch_line("*warnings summary*")


def test_processes_of_xdist_send_what_they_measured_and_say_so(inner):
    require_part("xdist")
    words = ("--perf", "--perf-budget", "0.01", "-p", "xdist", "-n", "2", "--perf-save")
    ran = inner.run(ONE, *words, fresh=True)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [MEASURED, "- disturbed: measured in parallel with other tests (-n 2) (test_one)"]
    )
    ran.stdout.fnmatch_lines(["perf: 1 record kept, run *"])


def test_options_and_fixtures_of_pytest_benchmark_do_not_clash(inner):
    # The names that pytest-benchmark takes.
    taken = ["--benchmark-sort", "--benchmark-json", "--benchmark-save", "--benchmark-compare"]
    plugin = "\n".join(f"    group.addoption({option!r})" for option in taken)
    inner.pytester.makeconftest(
        f"import pytest\ndef pytest_addoption(parser):\n    group = parser.getgroup('benchmark')\n"
        f"{plugin}\n@pytest.fixture\ndef benchmark():\n    return lambda f, *a: f(*a)\n"
    )
    source = "def test_both(perf, benchmark): assert perf(sum, [1]) == benchmark(sum, [1])"
    inner.run(source, "--perf", "--perf-budget", "0.01").assert_outcomes(passed=1)


def test_the_plugin_is_light():
    code = "import tinytorch.pytest_plugin, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert "tinytorch" in loaded
    assert loaded & {"numpy", "rich", "torch", "psutil", "safetensors"} == set()


def test_pytest_finds_the_plugin_by_its_entry_point():
    assert '[project.entry-points.pytest11]\ntinytorch = "tinytorch.pytest_plugin"' in (
        ROOT / "pyproject.toml"
    ).read_text("utf-8")
