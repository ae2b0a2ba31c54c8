import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from parts import require_part
from project_files import ROOT

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload
from tinytorch.tuning.records import workload_fingerprint

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def score(model):
    return np.ones(4)


def workload(**changes):
    fields = {
        "name": "w",
        "model": Sequential(Linear(4, 3, rng=0), ReLU()),
        "inputs": (Tensor(X),),
        "calibration": ((Tensor(X),),),
        "evaluate": score,
    }
    return Workload(**(fields | changes))


def with_changed_weight():
    changed = workload()
    changed.model.layers[0].weight.data[1, 2] += 1e-7
    return changed


def with_function(text):
    names = {}
    exec(text, names)
    return workload(evaluate=names["evaluate"])


def test_the_same_workload_made_twice_has_one_fingerprint():
    assert workload_fingerprint(workload()) == workload_fingerprint(workload())


def test_asking_changes_nothing():
    asked = workload()
    before = asked.run().data.copy()
    workload_fingerprint(asked)
    np.testing.assert_array_equal(asked.run().data, before)


def test_another_process_finds_the_same():
    code = (
        "from tinytorch.models.targets import load_workload\n"
        "from tinytorch.tuning.records import workload_fingerprint\n"
        "import sys; sys.stdout.write(workload_fingerprint(load_workload('mlp')))"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert ran[0] == ran[1]
    assert len(ran[0]) == 32


@pytest.mark.parametrize(
    "other",
    [
        with_changed_weight(),
        workload(model=Sequential(Linear(4, 3, rng=1), ReLU())),
        workload(model=Sequential(Linear(4, 3, rng=0))),
        workload(inputs=(Tensor(X * 2),)),
        workload(inputs=(Tensor(X[:1]),)),
        workload(inputs=(), keywords={"x": Tensor(X)}),
        workload(calibration=()),
        workload(metric="top-1"),
        workload(evaluate=None),
    ],
    ids=[
        "one weight",
        "all weights",
        "a layer less",
        "values of inputs",
        "shape of inputs",
        "inputs by name",
        "no calibration",
        "metric",
        "no evaluate",
    ],
)
def test_whatever_differs_shows(other):
    assert workload_fingerprint(other) != workload_fingerprint(workload())


def test_the_name_is_no_part_of_it():
    assert workload_fingerprint(replace(workload(), name="other")) == workload_fingerprint(
        workload()
    )


def test_a_setting_of_a_layer_shows():
    changed = workload()
    changed.model.layers[1].slope = 0.5
    assert workload_fingerprint(changed) != workload_fingerprint(workload())


def test_what_is_private_does_not_show():
    changed = workload()
    changed.model.layers[1]._calls = 12
    assert workload_fingerprint(changed) == workload_fingerprint(workload())


def test_code_in_no_file_is_read_itself():
    one, same, other = (
        with_function(f"def evaluate(model):\n    return [n * {factor} for n in range(3)]")
        for factor in (2, 2, 3)
    )
    assert workload_fingerprint(one) == workload_fingerprint(same)
    assert workload_fingerprint(one) != workload_fingerprint(other)


def test_a_changed_file_shows(tmp_path):
    found = []
    for body in ("return x * 2", "return x * 2", "return x * 3"):
        names = {}
        file = tmp_path / "model.py"
        file.write_text(f"def model(x):\n    {body}\n", "utf-8")
        exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
        found.append(workload_fingerprint(Workload("w", names["model"], (3.0,))))
    assert found[0] == found[1] != found[2]


def test_a_text_as_an_input_counts():
    one, other = (Workload("w", len, (text,)) for text in ("ab", "cd"))
    assert workload_fingerprint(one) != workload_fingerprint(other)


def test_what_cannot_be_read_equals_nothing():
    class Holder:
        def __init__(self):
            self.inner = [1]
            self.inner.append(self.inner)  # a list that holds itself

        def forward(self, x):
            return x

    found = workload(model=Holder())
    assert workload_fingerprint(found) != workload_fingerprint(found)


# ---------------------------------------------------------------- PyTorch


def torch_workload(seed=0, **changes):
    torch = require_part("torch")
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, **changes), torch.nn.BatchNorm2d(4))
    return Workload("torch", layers.eval(), (torch.ones(1, 3, 8, 8),))


def test_values_and_settings_of_pytorch_show():
    one = workload_fingerprint(torch_workload())
    assert one == workload_fingerprint(torch_workload())
    assert one != workload_fingerprint(torch_workload(seed=1))
    assert one != workload_fingerprint(torch_workload(dilation=2))


def test_code_of_pytorch_itself_may_change_meanwhile(monkeypatch):
    before = workload_fingerprint(torch_workload())
    module = require_part("torch").nn.Module
    plain = module.__setstate__
    # as torch.compile does when it begins
    monkeypatch.setattr(module, "__setstate__", lambda self, state: plain(self, state))
    assert workload_fingerprint(torch_workload()) == before


def test_buffers_of_pytorch_show():
    changed = torch_workload()
    changed.model[1].running_mean[0] = 0.5
    assert workload_fingerprint(changed) != workload_fingerprint(torch_workload())


def test_numbers_of_sixteen_bits_are_read():
    one, other = torch_workload(), torch_workload()
    for each in (one, other):
        each.model.bfloat16()
    assert workload_fingerprint(one) == workload_fingerprint(other)
    assert workload_fingerprint(one) != workload_fingerprint(torch_workload())


def test_a_configuration_counts_and_its_hash_does_not():
    class SomeConfig:
        def __init__(self, **settings):
            vars(self).update(settings)

    def configured(**settings):
        made = torch_workload()
        made.model.config = SomeConfig(**settings)
        return workload_fingerprint(made)

    eager = configured(size=4, _code_implementation="eager", _object_hash=1)
    assert eager == configured(size=4, _code_implementation="eager", _object_hash=2)
    assert eager != configured(size=4, _code_implementation="fused", _object_hash=1)
    assert eager != configured(size=8, _code_implementation="eager", _object_hash=1)


def test_weights_without_numbers_equal_nothing():
    torch = require_part("torch")

    class Empty(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, device="meta"))

        def forward(self, x):
            return x

    found = Workload("empty", Empty(), (torch.ones(1),))
    assert workload_fingerprint(found) != workload_fingerprint(found)


# ---------------------------------------------------------------- what evaluate holds


class Scorer:
    """An evaluate that is an object."""

    def __init__(self, labels):
        self.labels = labels

    def __call__(self, model):
        return self.labels

    def score(self, model):
        return self.labels


def closing_over(labels):
    def evaluate(model):
        return labels

    return evaluate


def with_labels(model, labels):
    return labels


def by_default(labels):
    def evaluate(model, labels=labels):
        return labels

    return evaluate


@pytest.mark.parametrize(
    "evaluate",
    [
        Scorer,
        closing_over,
        by_default,
        lambda labels: Scorer(labels).score,
        lambda labels: partial(with_labels, labels=labels),
        lambda labels: closing_over({"labels": [labels]}),
    ],
)
def test_other_examples_behind_the_same_evaluate_show(evaluate):
    one, same, other = (
        workload_fingerprint(workload(evaluate=evaluate(np.array(labels))))
        for labels in ([1, 2, 3], [1, 2, 3], [1, 2, 4])
    )
    assert one == same
    assert one != other
