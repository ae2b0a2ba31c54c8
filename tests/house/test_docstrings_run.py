"""The examples in docstrings give what they say."""

import doctest
import importlib

import pytest
from project_files import PACKAGE, dotted_name

WITH_EXAMPLES = [
    dotted_name(path) for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_hold(name):
    ran = doctest.testmod(importlib.import_module(name))
    assert (ran.failed, ran.attempted > 0) == (0, True)
