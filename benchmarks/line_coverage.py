"""A pytest plugin for `mutants.py --make`: which test runs which lines, and how long it takes.

    pytest -p line_coverage ...      with benchmarks/ on PYTHONPATH and `coverage` installed

It writes ``$LINE_COVERAGE.<process>`` (data of coverage, one context per test function) and
``$LINE_COVERAGE.<process>.seconds.json`` (seconds and outcome per test function).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent


def function_id(nodeid: str) -> str:
    """Return the id of the test function that a parametrized test belongs to."""
    return nodeid.partition("[")[0]


class LineCoverage:
    """Switches the context of coverage with every test, and sums up times."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.coverage = coverage.Coverage(
            data_file=file, config_file=False, source=[str(ROOT / "tinytorch")], messages=False
        )
        self.coverage.set_option(
            "run:disable_warnings", ["module-not-imported", "no-data-collected"]
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(function_id(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = function_id(report.nodeid)
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration
        if not report.passed:
            self.failed.add(name)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        rows = {
            name: [round(took, 3), name not in self.failed] for name, took in self.seconds.items()
        }
        Path(f"{self.file}.seconds.json").write_text(json.dumps(rows), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Start in the processes that run tests, which is not the one that hands them out."""
    if config.getoption("numprocesses", None) is None or hasattr(config, "workerinput"):
        config.pluginmanager.register(LineCoverage(f"{os.environ['LINE_COVERAGE']}.{os.getpid()}"))
