"""Optional parts (torch, scipy, ...): skipped where missing, unless the run requires them."""

import importlib
import os
from types import ModuleType

import pytest


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
    required = os.environ.get("TINYTORCH_REQUIRED_PARTS", "").split(",")
    if name.partition(".")[0] in (part.strip() for part in required):
        pytest.fail(f"{name} is required by TINYTORCH_REQUIRED_PARTS but is not installed")
    pytest.skip(f"{name} is not installed", allow_module_level=True)
