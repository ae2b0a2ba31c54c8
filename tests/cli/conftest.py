"""Targets for commands."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Give ``factory(name) -> target`` for the functions in the text FACTORIES of a test file."""
    file = tmp_path / "factories.py"
    file.write_text(request.module.FACTORIES, "utf-8")
    return lambda name: f"{file}:{name}"
