import json

from terminal import shown

from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.kernel_choice import FASTER, Choice, KernelReport, Rival

RIVALS = (Rival("numpy", Estimate(2.0, 1.9, 2.1)), Rival("other", None, "changes its inputs"))
CHOICE = Choice("gelu", "some", "numba", "numpy", RIVALS, 40, FASTER, 1e-6)


def test_ratios_are_found_by_name():
    assert CHOICE.against("numpy") == Estimate(2.0, 1.9, 2.1)
    assert CHOICE.against("other") is None
    assert CHOICE.against("nobody") is None


def test_a_choice_goes_through_json():
    assert Choice.from_dict(json.loads(json.dumps(CHOICE.to_dict()))) == CHOICE


def test_a_report_shows_itself():
    report = KernelReport((CHOICE,), "abc")
    assert "faster than numpy" in shown(report)
    assert "faster than numpy" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["rows"][0]["op"] == "gelu"
