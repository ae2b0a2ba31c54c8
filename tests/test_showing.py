"""The one lazy door from results to reporting."""

import subprocess
import sys

from tinytorch.reporting.document import BUILDERS
from tinytorch.showing import Shown
from tinytorch.transforms.plan import Plan


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


def test_every_shown_class_has_a_document():
    import tinytorch.comparison.comparison
    import tinytorch.tuning.optimization  # noqa: F401

    built = {each.rpartition(".")[2] for each in BUILDERS}
    assert Shown.__subclasses__()
    assert {each.__name__ for each in Shown.__subclasses__()} <= built
