"""The one lazy door from results to reporting."""

import subprocess
import sys
from importlib import import_module

import pytest

from tinytorch.reporting.document import BUILDERS
from tinytorch.showing import RENDERERS, Shown
from tinytorch.transforms.plan import Plan


@pytest.mark.parametrize("renderer", sorted(set(RENDERERS.values())))
def test_every_renderer_is_there(renderer):
    module, _, function = renderer.partition(":")
    assert callable(getattr(import_module(module), function))


def test_a_result_and_one_derived_from_it_show_themselves():
    class SpecialPlan(Plan):
        pass

    unknown = {"speedup": "not measured", "shrinkage": "not measured"}
    for kind in (Plan, SpecialPlan):
        plan = kind("Toy", {}, (), not_predicted=unknown)
        assert plan._repr_html_().startswith("<pre")


def test_no_result_imports_reporting_before_somebody_looks():
    code = "import sys, tinytorch.tuning.optimization\n"
    code += "sys.exit('tinytorch.reporting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_shown_class_has_a_renderer():
    import tinytorch.comparison.comparison
    import tinytorch.tuning.optimization  # noqa: F401

    built = {each.rpartition(".")[2] for each in BUILDERS}
    assert Shown.__subclasses__()
    assert {each.__name__ for each in Shown.__subclasses__()} <= {*RENDERERS, *built}
