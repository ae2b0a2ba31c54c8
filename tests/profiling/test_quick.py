import pytest
from classic_models import KINDS, PARAMETERS, leaving_no_trace, make_input, make_model
from measure.imaginary import ceilings

from tinytorch.profiling.profiler import Profiler, quick_profile


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    found = ceilings()
    monkeypatch.setattr(
        "tinytorch.profiling.model_profile.machine_ceilings", lambda device, **settings: found
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_prints_and_returns_the_same_facts(kind, capsys):
    model, x = make_model(kind), make_input(kind)
    with leaving_no_trace(model):
        facts = quick_profile(model, x, Profiler(budget_s=0.01))
    shown = capsys.readouterr().out
    assert facts["parameters"] == PARAMETERS
    for text in (f"{PARAMETERS:,}", f"{facts['flops']:,}", facts["bottleneck"]):
        assert text in shown


def test_it_does_without_a_profiler(capsys):
    facts = quick_profile(make_model("core"), make_input("core"))
    assert facts["latency_ms"] > 0
    assert "bottleneck" in capsys.readouterr().out
