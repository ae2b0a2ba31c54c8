"""The pytest plugin: the fixture `perf` measures and compares, when ``--perf`` asks for it.

Everything heavier than pytest itself is imported when something is measured.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tinytorch.pytest_plugin.options import MARKER, add_options, is_on, is_worker, settings_of
from tinytorch.pytest_plugin.session import REPORT_FIELD, Perf, PerfSession, entries_of

__all__ = ["Perf", "perf"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which start with ``--perf``."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker, and collect what is measured; workers leave that to their controller."""
    config.addinivalue_line("markers", MARKER)
    if is_on(config) and not is_worker(config):
        config.pluginmanager.register(PerfSession(config), "tinytorch-perf-session")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return whether tests are measured, or which options need ``--perf``."""
    settings = settings_of(config)
    if is_on(config):
        return f"perf: measuring, {settings.budget_text} a test"
    waiting = [option for option, value in settings.waiting.items() if value]
    return f"perf: off, so {', '.join(waiting)} does nothing; add --perf" if waiting else None


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measure a function, or compare two: ``perf(function, ...)``, ``perf.compare(a, b)``."""
    return Perf(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send what was measured along with the report, which also comes from other processes."""
    report = yield
    if report.when == "call" and (entries := entries_of(item)):
        setattr(report, REPORT_FIELD, entries)
    return report
