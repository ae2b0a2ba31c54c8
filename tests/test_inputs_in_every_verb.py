"""Every verb takes a model that is called by name and returns a dataclass, in both frameworks."""

import numpy as np
import pytest
from called_models import FRAMEWORKS

from tinytorch import (
    Batches,
    Workload,
    compare,
    load_optimized,
    optimize,
    profile_workload,
    save_optimized,
)
from tinytorch.models.targets import load_workload
from tinytorch.profiling.size_scaling import measure_scaling
from tinytorch.tuning.sizes import advise_batch_size


@pytest.fixture(params=FRAMEWORKS)
def kit(request):
    return FRAMEWORKS[request.param]()


WIDTH = 256


def numbers(seed=0):
    return np.random.default_rng(seed).standard_normal((4, WIDTH)).astype(np.float32)


def workload(kit, kind="AsDataclass", **settings):
    batches = [{"x": kit.tensor(numbers(seed=n)), "other": kit.tensor(numbers())} for n in (0, 1)]
    return Workload(
        kind, getattr(kit, kind)(WIDTH), Batches(batches), **{"calibration": batches, **settings}
    )


@pytest.mark.parametrize("kind", ["AsDataclass", "AsDictionary"])
def test_profile(kit, kind):
    found = profile_workload(workload(kit, kind), runs=3, ceilings=False)
    assert found.examples == 4
    assert sum("first of 2 batches" in note for note in found.notes) == 1


@pytest.mark.parametrize("kind", ["AsDataclass", "AsDictionary"])
def test_compare(kit, kind):
    found = compare(workload(kit, kind), workload(kit, kind), budget_s=0.2)
    assert found.outputs is not None
    assert sum("first of 2 batches" in note for note in found.notes) == 1


def test_advise(kit):
    found = advise_batch_size(workload(kit), sizes=(2, 8), budget_s=1.0)
    assert [each.size for each in found.points] == [2, 8]
    assert any("first of 2 batches" in note for note in found.notes)


def test_predict(kit):
    found = measure_scaling(workload(kit), at=32, sizes=(4, 8), budget_s=0.2)
    assert [each.size for each in found.points] == [4, 8]
    assert any("first of 2 batches" in note for note in found.notes)


def test_optimize_and_save(kit, tmp_path):
    work = workload(kit)
    found = optimize(work, goal="memory", only=["int8-static"], max_output_error=1.0, budget_s=5.0)
    assert [each.outcome for each in found.attempts] == ["better"], found.attempts[0].reason
    assert sum("first of 2 batches" in note for note in found.notes) == 1
    save_optimized(found, tmp_path / "saved", workload=work)
    loaded = load_optimized(tmp_path / "saved", work)
    assert tuple(loaded(**work.keywords).scores.shape) == (4, 4)


TARGET = """
from called_models import FRAMEWORKS
import numpy as np

def make():
    kit = FRAMEWORKS["{name}"]()
    x = kit.tensor(np.ones((4, 6), np.float32))
    return kit.AsDataclass(), {{"x": x, "other": x}}

def listed():
    kit = FRAMEWORKS["{name}"]()
    x = kit.tensor(np.ones((4, 6), np.float32))
    return kit.Summed(), [x, x]
"""


def test_targets_return_a_model_and_any_inputs(kit, tmp_path):
    (tmp_path / "yours.py").write_text(TARGET.format(name=kit.name))
    assert set(load_workload(f"{tmp_path}/yours.py:make").keywords) == {"x", "other"}
    assert tuple(load_workload(f"{tmp_path}/yours.py:listed").run().shape) == (4, 4)
