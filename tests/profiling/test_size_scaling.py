import dataclasses
import json

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.profiling import size_scaling
from tinytorch.profiling.size_laws import Trend
from tinytorch.profiling.size_scaling import measure_scaling

AMPLE = {"budget_s": 1000.0}
"""So much that it limits nothing, however slow the machine is; few rounds keep it short."""


@pytest.fixture(scope="module", autouse=True)
def _few_rounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_scaling, "MAX_ROUNDS", size_scaling.MIN_ROUNDS)
        yield


def perceptron():
    model = Sequential(Linear(6, 8, rng=0), ReLU(), Linear(8, 3, rng=0))
    return Workload("small", model, (Tensor(np.ones((2, 6), np.float32)),))


def small_gpt(context=16):
    model = GPT(11, 8, 1, 2, max_seq_len=context, rng=0).eval()
    return Workload("text", model, (Tensor(np.arange(8)[None] % 11),))


@pytest.fixture(scope="module")
def by_batch(_few_rounds):
    return measure_scaling(perceptron(), at=64, check=True, **AMPLE)


def test_sizes_reach_from_a_sixteenth_to_half_of_the_one_asked_about(by_batch):
    assert [point.size for point in by_batch.points] == [4, 6, 8, 12, 16, 24, 32]
    assert (by_batch.at, by_batch.usual, by_batch.axis) == (64, 2, "batch")


@pytest.mark.parametrize(
    ("at", "sizes"),
    [
        (3, [1, 2]),
        (4, [1, 2, 3]),
        (5, [1, 2, 3, 4]),
        (8, [1, 2, 3, 4]),
        (16, [2, 3, 4, 6, 8]),
        (100, [6, 9, 12, 19, 25, 38, 50]),
    ],
)
def test_small_sizes_are_taken_only_where_there_are_few(at, sizes):
    found = measure_scaling(perceptron(), at=at, **AMPLE)
    assert [point.size for point in found.points] == sizes


def test_a_small_budget_measures_small_sizes_and_says_so():
    found = measure_scaling(perceptron(), at=1 << 20, budget_s=1e-9)
    assert [point.size for point in found.points] == [1, 2, 3, 4]
    assert "a budget of 1e-09 s allows sizes up to 4; a larger one" in found.notes[0]
    assert any("far from the measured sizes" in note for note in found.all_notes)


def test_a_large_usual_size_that_the_budget_does_not_allow_is_halved():
    wide = dataclasses.replace(perceptron(), inputs=(Tensor(np.ones((64, 6), np.float32)),))
    found = measure_scaling(wide, at=128, budget_s=1e-9)
    assert [point.size for point in found.points] == [1, 2, 3, 4]


def test_flops_are_counted_at_every_size(by_batch):
    assert [point.flops for point in by_batch.points] == [
        2 * size * (6 * 8 + 8 * 3) for size in (4, 6, 8, 12, 16, 24, 32)
    ]
    assert by_batch.flops.value == 2 * 64 * 72
    assert by_batch.flops.law.formula == "144 n"
    assert by_batch.flops.holds is True
    assert by_batch.flops.words == "about linear"


def test_memory_is_parameters_and_what_grows(by_batch):
    parameters = 4 * (6 * 8 + 8 + 8 * 3 + 3)
    assert by_batch.memory.constant == parameters
    assert by_batch.memory.law.is_exact
    assert by_batch.memory.law.exponent == pytest.approx(1)
    assert by_batch.memory.holds is True


def test_every_size_has_the_same_number_of_turns(by_batch):
    counts = {point.latency.count for point in (*by_batch.points, by_batch.check)}
    assert len(counts) == 1
    assert min(counts) >= 5


def test_the_check_is_the_size_asked_about(by_batch):
    assert by_batch.check.size == 64
    assert by_batch.time.measured == by_batch.check.latency.median


def test_the_whole_holds_as_its_parts_do(by_batch, monkeypatch):
    verdicts = {"time": True, "FLOPs": True, "memory": True}
    monkeypatch.setattr(Trend, "holds", property(lambda trend: verdicts[trend.quantity]))
    assert by_batch.holds is True
    verdicts["time"] = None
    assert by_batch.holds is None
    verdicts["FLOPs"] = False
    assert by_batch.holds is False


def test_without_a_check_nothing_is_measured_there():
    found = measure_scaling(perceptron(), at=16, **AMPLE)
    assert found.check is None
    assert found.holds is None


def test_sequences_grow_between_linear_and_quadratic():
    found = measure_scaling(small_gpt(256), at=256, axis="sequence", check=True, **AMPLE)
    assert 1 < found.flops.law.exponent < 2
    assert found.flops.law.is_exact
    assert found.flops.value == found.check.flops > 2 * found.points[-1].flops
    assert found.axis == "sequence"


def test_given_sizes_are_measured_in_order():
    found = measure_scaling(perceptron(), at=20, sizes=(10, 3, 3, 6), **AMPLE)
    assert [point.size for point in found.points] == [3, 6, 10]


def test_a_size_that_the_model_refuses_is_named_with_its_reason():
    with pytest.raises(SettingError, match=r"text refuses size 32 on axis 1: .*at most 16 tokens"):
        measure_scaling(small_gpt(), at=64, axis="sequence", **AMPLE)


def test_the_size_to_check_is_tried_before_anything_is_measured():
    with pytest.raises(SettingError, match="text refuses size 20"):
        measure_scaling(small_gpt(), at=20, axis="sequence", sizes=(4, 8), check=True, **AMPLE)


def test_a_layer_that_raises_is_named():
    class Odd:
        def forward(self, x):
            if len(x.data) > 4:
                raise RuntimeError("too many")
            return x * 2.0

    workload = Workload("odd", Odd(), (Tensor(np.ones((2, 3), np.float32)),))
    with pytest.raises(SettingError, match=r"odd refuses size 8 .*RuntimeError: too many"):
        measure_scaling(workload, at=32, **AMPLE)


def test_a_model_that_never_works_is_not_blamed_on_the_size():
    class Broken:
        def forward(self, x):
            raise RuntimeError("broken")

    workload = Workload("broken", Broken(), (Tensor(np.ones((2, 3), np.float32)),))
    with pytest.raises(ModelError, match="RuntimeError: broken"):
        measure_scaling(workload, at=32, **AMPLE)


def test_sizes_that_are_too_small_are_left_out_and_noted():
    class Wide:
        def forward(self, x):
            if len(x.data) < 4:
                raise RuntimeError("too few")
            return x * 2.0

    workload = Workload("wide", Wide(), (Tensor(np.ones((8, 3), np.float32)),))
    found = measure_scaling(workload, at=32, **AMPLE)
    assert [point.size for point in found.points] == [4, 6, 8, 12, 16]
    assert "sizes 2, 3 are left out: wide refuses size 2" in found.notes[0]
    assert found.flops is None  # products only, and there is none


def test_one_size_that_fits_is_not_enough():
    class Picky:
        def forward(self, x):
            if len(x.data) != 8:
                raise RuntimeError("eight, please")
            return x * 2.0

    workload = Workload("picky", Picky(), (Tensor(np.ones((8, 3), np.float32)),))
    with pytest.raises(SettingError, match=r"the model takes only 8; give the sizes .*eight"):
        measure_scaling(workload, at=16, **AMPLE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": 2}, "a trend needs two sizes below at=2; ask for a larger one"),
        ({"at": 0}, "at=0"),
        ({"at": 8, "sizes": (8, 16)}, r"at=8 is not above the sizes to measure, \[8, 16\]"),
        ({"at": 8, "sizes": (4,)}, r"sizes \[4\]; a trend needs two"),
        ({"at": 8, "sizes": (0, 4)}, r"sizes \[0, 4\]; a trend needs two different ones, from 1"),
        ({"at": 8, "budget_s": 0}, "budget_s=0"),
        ({"at": 8, "axis": "depth"}, "axis 'depth'; it is batch, sequence or a number"),
        ({"at": 8, "axis": 4}, "no input has an axis 4"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        measure_scaling(perceptron(), **(AMPLE | settings))


def test_a_workload_without_inputs_is_refused():
    empty = dataclasses.replace(perceptron(), inputs=())
    with pytest.raises(SettingError, match="has no example inputs"):
        measure_scaling(empty, at=8, **AMPLE)


def test_the_model_is_left_as_it_was():
    workload = perceptron()
    before = workload.inputs[0].data.copy()
    measure_scaling(workload, at=8, **AMPLE)
    assert (workload.inputs[0].data == before).all()
    assert all(parameter.grad is None for parameter in workload.model.parameters())


def test_models_of_torch_scale_too():
    torch = require_part("torch")
    workload = Workload("torch", torch.nn.Linear(5, 7), (torch.ones(2, 5),))
    found = measure_scaling(workload, at=16, check=True, **AMPLE)
    assert found.framework == "pytorch"
    assert found.check.flops == 2 * 16 * 5 * 7
    assert found.memory.holds is True


def test_inputs_by_name_are_resized_and_used():
    torch = require_part("torch")

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(5, 7)

        def forward(self, *, x, mask):
            return self.linear(x) * mask

    keywords = {"x": torch.ones(2, 5), "mask": torch.ones(2, 1)}
    found = measure_scaling(
        Workload("named", Masked(), (), keywords=keywords), at=16, check=True, **AMPLE
    )
    assert found.usual == 2
    assert found.flops.value == found.check.flops == 2 * 16 * 5 * 7


def test_operations_without_a_formula_are_noted():
    torch = require_part("torch")

    class Transform(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).real

    found = measure_scaling(Workload("fft", Transform(), (torch.ones(2, 8),)), at=16, **AMPLE)
    assert any("not in the FLOPs" in note and "fft" in note for note in found.notes)


def test_it_can_be_written_as_json(by_batch):
    fields = json.loads(json.dumps(by_batch.to_dict()))
    assert fields["time"]["words"] == by_batch.time.words
    assert fields["points"][0]["size"] == 4
    assert fields["holds"] is by_batch.holds
    assert "FLOPs follow 144 n exactly at all 7 sizes" in fields["notes"]
    assert fields["notes"] == list(by_batch.all_notes)


def test_somebody_can_watch():
    said = []

    class Watcher:
        def describe(self, text):
            said.append(text)

    measure_scaling(perceptron(), at=8, progress=Watcher(), **AMPLE)
    assert said[0] == "small: trying size 4"
    assert "small: counting at size 4" in said
