"""The versions that the tests run with are locked, and drift from the lock is reported."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from parts import require_part
from project_files import ROOT

pytest_plugins = ["pytester"]

LOCK = ROOT / "constraints.txt"
SCHEDULE = ROOT / "docs" / "ci" / "newest-versions.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def pins():
    lines = LOCK.read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def wanted():
    project = PROJECT["project"]
    words = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [Requirement(word) for word in words]


def brought_by(requirement):
    """Return what a package needs here, if it is installed in its locked version."""
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        return []
    if not pins()[canonicalize_name(requirement.name)].specifier.contains(found.version):
        return []
    needs = [Requirement(word) for word in found.requires or []]
    extras = requirement.extras or {""}
    return [
        need
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": each}) for each in extras)
    ]


def test_every_pin_is_one_public_version():
    for pin in pins().values():
        (only,) = pin.specifier
        assert only.operator == "=="
        assert Version(only.version).local is None
        assert pin.url is None


def test_what_the_project_asks_for_is_pinned_within_its_range():
    for requirement in wanted():
        (pin,) = pins()[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), requirement


def test_what_comes_with_it_is_pinned():
    waiting, seen = wanted(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        assert name in pins()
        if (name, *requirement.extras) not in seen:
            seen.add((name, *requirement.extras))
            waiting += brought_by(requirement)
    assert len(seen) > len(wanted())


def test_a_build_takes_the_locked_setuptools():
    assert PROJECT["build-system"]["requires"] == [str(pins()["setuptools"])]


def test_the_test_command_uses_the_lock():
    page = (ROOT / "README.md").read_text("utf-8")
    command = re.search(r"<!-- test command -->\n```bash\n(.*?)```", page, re.DOTALL)[1]
    assert f"pip install -c {LOCK.name} -e" in command


def report(lock, junit):
    command = [sys.executable, str(ROOT / ".ci" / "newest"), str(lock), str(junit)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_drift_is_reported_with_both_versions(tmp_path):
    other = tmp_path / "lock.txt"
    rows = [f"{name}=={distribution(name).version}" for name in ("numpy", "rich")]
    other.write_text("\n".join([*rows, "psutil==0.1", "not-installed==1.0"]), "utf-8")
    lines = report(other, tmp_path / "missing.xml")
    assert f"- psutil: 0.1 -> {distribution('psutil').version}" in lines
    assert f"- pytest: not locked -> {distribution('pytest').version}" in lines
    assert not [line for line in lines if re.match("- (numpy|rich|not-installed|pip)", line)]


def test_only_tests_that_failed_are_reported(pytester):
    pytester.makepyfile(
        test_it="import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2, 'so'\n"
        "@pytest.fixture\ndef broken(): raise ValueError('why')\n"
        "def test_error(broken): pass\n"
    )
    pytester.runpytest_inprocess("--junit-xml=out.xml")
    named = [line for line in report(LOCK, pytester.path / "out.xml") if "test_it" in line]
    assert [line.split(": ")[0] for line in named] == [
        "- test_it::test_bad",
        "- test_it::test_error",
    ]


def test_a_run_without_results_is_not_a_good_one(tmp_path):
    heading = report(LOCK, tmp_path / "missing.xml").index("## Tests that failed")
    assert "none" not in report(LOCK, tmp_path / "missing.xml")[heading:]


def test_the_schedule_installs_without_the_lock_and_reports_in_any_case():
    job = require_part("yaml").safe_load(SCHEDULE.read_text("utf-8"))["jobs"]["tests"]
    commands = {step["run"]: step for step in job["steps"] if "run" in step}
    (install,) = [command for command in commands if "pip install" in command]
    (tests,) = [command for command in commands if "pytest" in command]
    (tells,) = [command for command in commands if ".ci/newest" in command]
    assert LOCK.name not in install
    assert commands[tells]["if"] == "always()"
    assert "--junit-xml newest.xml" in tests
    assert f".ci/newest {LOCK.name} newest.xml" in tells
