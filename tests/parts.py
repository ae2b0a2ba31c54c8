"""Optional parts (torch, scipy, ...): skipped where missing, unless the run requires them."""

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""One engine under the names that systems give it."""


def require_part(name: str) -> ModuleType:
    """Import and return an optional part, or skip the test (or test file) that needs it.

    A part named in ``TINYTORCH_REQUIRED_PARTS`` (separated by commas) must be there: without it
    the test fails. A part that is installed but broken fails in any case.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # The part is there; something that it needs is not.
    _without(name.partition(".")[0], f"{name} is not installed")


def require_browser() -> str:
    """Give the path of Chromium, or skip the test that needs it, and playwright to drive it.

    Where ``TINYTORCH_REQUIRED_PARTS`` names `browser`, the test fails instead.
    """
    if importlib.util.find_spec("playwright") is None:
        _without("browser", "the package playwright is not installed")
    found = filter(None, map(shutil.which, BROWSERS))
    return next(found, None) or _without("browser", "there is no program chromium")


def require_postgres() -> Path:
    """Give the folder of PostgreSQL's programs, or skip the test that needs a server.

    Where ``TINYTORCH_REQUIRED_PARTS`` names `postgres`, the test fails instead.
    """
    from postgres_server import find_programs

    if importlib.util.find_spec("psycopg") is None:
        _without("postgres", "the package psycopg is not installed")
    return find_programs() or _without("postgres", "there is no server of PostgreSQL")


def require_sandbox() -> None:
    """Skip the test (or test file) where contenders cannot be sandboxed.

    Where ``TINYTORCH_REQUIRED_PARTS`` names `bubblewrap`, the test fails instead.
    """
    from tinytorch.competition.sandbox.bubblewrap import why_no_sandbox

    if reason := why_no_sandbox():
        _without("bubblewrap", reason)


def _without(part: str, reason: str) -> NoReturn:
    required = os.environ.get("TINYTORCH_REQUIRED_PARTS", "").split(",")
    if part in (each.strip() for each in required):
        pytest.fail(f"{part} is required by TINYTORCH_REQUIRED_PARTS: {reason}")
    pytest.skip(reason, allow_module_level=True)


def hide_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a package be missing for the rest of a test."""
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, name, None)
