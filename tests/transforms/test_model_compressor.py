"""The whole way from a float model to a small file, on real digits."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part
from small_models import workload
from trained_digits import build, digits_loader, digits_workload

from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.optimizers import SGD
from tinytorch.errors import SettingError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.models.adapter import adapter_for
from tinytorch.transforms import compression as model_compressor
from tinytorch.transforms.compressed_file import load_compressed
from tinytorch.transforms.compression import ModelCompressor
from tinytorch.transforms.support.training import CubicSchedule


@pytest.fixture(scope="module")
def trained():
    """The digits at 80% zeros and 4 bits, with training."""
    compressor = ModelCompressor(0.8, 4, epochs=6, rounding_epochs=3)
    return compressor.compress(digits_workload(), digits_loader())


def bits_of(model):
    return {name: array.copy() for name, array in model.state_dict().items()}


def check_same(model, expected):
    assert model.state_dict().keys() == expected.keys()
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.slow
def test_training_keeps_the_accuracy_at_many_zeros_and_few_bits(trained):
    scores = digits_workload().evaluate(trained.model)
    assert trained.accuracy.candidate_mean == scores.mean()
    assert trained.baseline_score == digits_workload().evaluate(digits_workload().model).mean()
    assert trained.accuracy.difference > -0.02  # 600 images: a few of them more or less
    assert len(trained.model[0].weight.data.ravel().nonzero()[0]) < 0.2 * 64 * 48 + 1


def test_every_size_is_that_of_a_file(trained, tmp_path):
    work = digits_workload()
    adapter_for(work.model).save(work.model, tmp_path / "original")
    assert trained.original_bytes == (tmp_path / "original").stat().st_size
    assert trained.save(tmp_path / "small") == (tmp_path / "small").stat().st_size
    assert trained.file_bytes == (tmp_path / "small").stat().st_size
    assert trained.ratio == trained.original_bytes / trained.file_bytes
    assert 0 < trained.header_bytes < trained.file_bytes


def test_the_model_is_the_one_in_the_file(trained, tmp_path):
    trained.save(tmp_path / "small")
    loaded, _ = load_compressed(tmp_path / "small", build())
    check_same(loaded, bits_of(trained.model))
    for name, each in trained.state.items():
        if isinstance(each, QuantizedArray):
            np.testing.assert_array_equal(each.dequantize(), trained.model.state_dict()[name])
            assert np.abs(each.values).max() <= 7


def test_stages_follow_each_other(trained):
    original, pruned, quantized = trained.stages
    assert [original.name, pruned.name, quantized.name] == ["original", "pruned", "quantized"]
    assert original.sparsity == 0
    assert pruned.sparsity == round(0.8 * (64 * 48 + 480)) / (64 * 48 + 480)
    assert quantized.sparsity >= pruned.sparsity  # small weights round to zero
    assert original.file_bytes == pruned.file_bytes > quantized.file_bytes
    assert original.encoded_bytes > pruned.encoded_bytes > quantized.encoded_bytes
    assert original.accuracy is None
    assert pruned.accuracy.n == quantized.accuracy.n == 597


def test_the_naive_product_and_the_bound_stand_beside_the_real_ratio(trained):
    # 3552 weights, of which 80% are zero, and 4 bits for 32; then 58 biases and 2 scales
    assert trained.naive_parts == {"zeros": pytest.approx(3552 / 710), "bits": 8.0}
    assert trained.naive_ratio == pytest.approx(8 * 3552 / 710)
    bits = 0.0
    for name in ("layers.0.weight", "layers.2.weight"):
        values = trained.state[name].values.ravel().tolist()
        counts = Counter(values).values()
        bits += sum(count * math.log2(len(values) / count) for count in counts)
    assert trained.bound_bytes == pytest.approx(bits / 8 + 4 * 58 + 4 * 2)
    assert trained.ratio < trained.naive_ratio
    assert trained.ratio < trained.bound_ratio < trained.naive_ratio


def test_the_workload_stays_as_it_is(trained):
    again = ModelCompressor(0.8, 4, epochs=6, rounding_epochs=3)
    before = bits_of(digits_workload().model)
    result = again.compress(digits_workload(), digits_loader())
    check_same(digits_workload().model, before)
    check_same(result.model, bits_of(trained.model))  # and the same seed gives the same bits


def test_training_on_does_not_change_the_result():
    work = replace(digits_workload(), model=build())
    result = ModelCompressor(0, None).compress(work)
    kept = {name: array.copy() for name, array in result.state.items()}
    for model in (work.model, result.model):
        for parameter in model.parameters():
            parameter.data += 1
    assert all(np.array_equal(array, kept[name]) for name, array in result.state.items())
    assert result.model is not work.model
    assert [stage.name for stage in result.stages] == ["original"]
    assert result.naive_ratio == 1


def test_without_data_both_happen_at_once():
    result = ModelCompressor(0.3, 8).compress(digits_workload())
    assert [stage.name for stage in result.stages] == ["original", "pruned", "quantized"]
    biases = digits_workload().model.state_dict()["layers.0.bias"]
    np.testing.assert_array_equal(result.model.state_dict()["layers.0.bias"], biases)
    assert result.accuracy.difference > -0.05


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("cnn", "branches", "shared", "gpt")
        ),
    ],
)
def test_bare_models_are_compressed_too(name, tmp_path):
    model = workload(name).model
    before = bits_of(model)
    result = ModelCompressor(0.5, 8).compress(model)
    assert result.name == type(model).__name__
    assert result.accuracy is None
    assert any("no accuracy was measured" in note for note in result.notes)
    result.save(tmp_path / "small")
    loaded, _ = load_compressed(tmp_path / "small", workload(name).model)
    check_same(loaded, bits_of(result.model))
    check_same(model, before)


def test_parts_can_be_left_out():
    pruned = ModelCompressor(0.6, None).compress(digits_workload())
    assert [stage.name for stage in pruned.stages] == ["original", "pruned"]
    assert pruned.naive_parts.keys() == {"zeros"}
    quantized = ModelCompressor(0, 4, rounding_epochs=1).compress(
        digits_workload(), digits_loader()
    )
    assert [stage.name for stage in quantized.stages] == ["original", "quantized"]
    assert quantized.naive_parts == {"bits": 8.0}


def test_kept_layers_are_neither_pruned_nor_rounded():
    result = ModelCompressor(0.5, 4, keep=("layers.0",)).compress(digits_workload())
    weight = digits_workload().model[0].weight.data
    np.testing.assert_array_equal(result.model[0].weight.data, weight)
    assert ("layers.0", "kept by keep='layers.0'") in [
        (each.layer, each.reason) for each in result.skipped
    ]


def test_a_schedule_and_an_optimizer_of_ones_own_are_used():
    made = []

    def optimizer(parameters):
        made.append(SGD(parameters, lr=0.01))
        return made[-1]

    compressor = ModelCompressor(
        0.5, 8, epochs=1, rounding_epochs=1, schedule=CubicSchedule(steps=10)
    )
    result = compressor.compress(digits_workload(), digits_loader(), optimizer=optimizer)
    assert [each.steps for each in made] == [38, 38]
    assert result.stages[1].sparsity == 0.5


def test_every_step_of_both_trainings_is_reported():
    seen = []
    compressor = ModelCompressor(0.5, 8, epochs=2, rounding_epochs=1)
    compressor.compress(
        digits_workload(),
        digits_loader(),
        on_step=lambda done, total, loss: seen.append((done, total, np.isfinite(loss))),
    )
    steps = len(digits_loader())
    pruning = [(done, 2 * steps, True) for done in range(1, 2 * steps + 1)]
    assert seen == pruning + [(done, steps, True) for done in range(1, steps + 1)]


def test_frozen_weights_are_rounded_without_training():
    model = build()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    work = replace(digits_workload(), model=model)
    result = ModelCompressor(0, 4, rounding_epochs=1).compress(work, digits_loader())
    assert len(np.unique(result.model[0].weight.data)) <= 15
    np.testing.assert_array_equal(result.model[0].bias.data, model[0].bias.data)


def test_frozen_weights_are_pruned_at_once_and_the_others_while_training():
    work = replace(digits_workload(), model=adapter_for(build()).clone(digits_workload().model))
    for parameter in work.model[0].parameters():
        parameter.requires_grad = False
    before = work.model[0].weight.data
    result = ModelCompressor(0.5, None, epochs=1).compress(work, digits_loader())
    after = result.model[0].weight.data
    np.testing.assert_array_equal(after[after != 0], before[after != 0])
    assert result.stages[1].sparsity == 0.5
    assert not np.array_equal(result.model[2].bias.data, work.model[2].bias.data)


def test_every_stage_is_evaluated_as_it_will_be_used():
    case = digits_workload()
    model = Sequential(*case.model.layers[:2], Dropout(0.9, rng=0), *case.model.layers[2:]).train()
    result = ModelCompressor(0.1, 8).compress(replace(case, model=model))
    assert result.baseline_score == case.evaluate(case.model).mean()
    assert all(each.accuracy.difference > -0.05 for each in result.stages[1:])
    assert model.training
    assert result.model.training


@pytest.mark.parametrize(("sparsity", "bits"), [(0.5, None), (0.5, 8), (0, 4)])
def test_models_that_are_zero_throughout_are_compressed(sparsity, bits):
    model = Sequential(Linear(6, 4, rng=0), ReLU(), Linear(4, 2, rng=1))
    for parameter in model.parameters():
        parameter.data[:] = 0
    result = ModelCompressor(sparsity, bits).compress(model)
    assert "zeros" not in result.naive_parts
    assert any("all weights are zero" in note for note in result.notes) is (sparsity > 0)
    assert (result.bound_ratio is None) is (bits is None)
    assert "smaller" in result._repr_html_()
    assert not result.model[0].weight.data.any()


def test_a_weight_that_is_zero_throughout_learns_while_it_is_rounded():
    model = adapter_for(build()).clone(digits_workload().model)
    model[2].weight.data[:] = 0
    work = replace(digits_workload(), model=model)
    result = ModelCompressor(0, 4, rounding_epochs=1).compress(work, digits_loader())
    weight = result.model[2].weight.data
    assert weight.any()
    assert len(np.unique(weight)) <= 15
    np.testing.assert_array_equal(weight, result.state["layers.2.weight"].dequantize())
    assert result.accuracy.difference > 0.3


@pytest.mark.slow
def test_short_trainings_prune_gradually_too(monkeypatch):
    seen = []
    tuning = model_compressor.fine_tune

    def spy(*arguments, schedule, **settings):
        seen.append(schedule)
        return tuning(*arguments, schedule=schedule, **settings)

    monkeypatch.setattr(model_compressor, "fine_tune", spy)
    few = list(digits_loader())[:12]
    ModelCompressor(0.5, None, epochs=1).compress(digits_workload(), few)
    ModelCompressor(0.5, None, epochs=9).compress(digits_workload(), digits_loader())
    short, long = seen
    assert len({short(step, 0.5) for step in range(13)}) == 9  # 8 steps of pruning
    assert (long.steps, long.every) == (round(0.7 * 9 * 38), 10)


def test_settings_of_a_training_need_one():
    for settings in ({"loss": CrossEntropyLoss()}, {"optimizer": lambda p: SGD(p, lr=0.1)}):
        with pytest.raises(SettingError, match=r"(loss|optimizer) without training data"):
            ModelCompressor().compress(digits_workload(), **settings)
    with pytest.raises(SettingError, match="schedule without training data"):
        ModelCompressor(schedule=CubicSchedule(steps=10)).compress(digits_workload())
    with pytest.raises(SettingError, match="training needs batches, and the loader has none"):
        ModelCompressor().compress(digits_workload(), [])


def test_what_happened_at_once_is_noted():
    def last_note(*settings):
        return ModelCompressor(*settings).compress(digits_workload()).notes[-1:]

    assert last_note(0.5, 8) == ("no training data: pruned and rounded at once",)
    assert last_note(0, 8) == ("no training data: rounded at once",)
    assert last_note(0, None) == ()
    trained = ModelCompressor(0, 8, rounding_epochs=1).compress(digits_workload(), digits_loader())
    assert not any("at once" in note for note in trained.notes)


@pytest.mark.parametrize("sparsity", [0, 0.5])
def test_a_pattern_that_keeps_nothing_is_noted(sparsity):
    result = ModelCompressor(sparsity, 8, keep=("layer.0",)).compress(digits_workload())
    assert any("keep='layer.0' matches no layer" in note for note in result.notes)


def test_settings_may_be_numbers_of_numpy():
    compressor = ModelCompressor(np.float32(0.5), 8, epochs=np.int64(1), margin=np.float32(0.25))
    assert compressor.compress(digits_workload()).stages[1].sparsity == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_the_model_is_the_one_in_the_file_in_every_dtype(dtype, bits, tmp_path):
    model = build().astype(dtype)
    result = ModelCompressor(0.5, bits).compress(model)
    result.save(tmp_path / "small")
    loaded, _ = load_compressed(tmp_path / "small", build().astype(dtype))
    check_same(loaded, bits_of(result.model))
    for name, each in result.state.items():
        array = each.dequantize() if isinstance(each, QuantizedArray) else each
        np.testing.assert_array_equal(result.model.state_dict()[name], array.astype(dtype))
    assert result.naive_parts.get("bits", 0) == (8 * np.dtype(dtype).itemsize / bits if bits else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bits", [None, 8])
def test_models_of_pytorch_are_the_ones_in_their_files_in_every_dtype(name, bits, tmp_path):
    torch = require_part("torch")
    dtype = getattr(torch, name)
    model = torch.nn.Sequential(torch.nn.Linear(128, 128)).to(dtype)
    result = ModelCompressor(0.5, bits).compress(model)
    result.save(tmp_path / "small")
    loaded, _ = load_compressed(
        tmp_path / "small", torch.nn.Sequential(torch.nn.Linear(128, 128)).to(dtype)
    )
    for key, value in result.model.state_dict().items():
        assert value.dtype == dtype
        assert torch.equal(value, loaded.state_dict()[key])
    if bits is None:
        assert result.naive_parts.keys() == {"zeros"}
    else:
        whole = torch.from_numpy(result.state["0.weight"].dequantize())
        assert torch.equal(result.model[0].weight.detach(), whole.to(dtype))
        assert result.naive_parts["bits"] == dtype.itemsize
    assert all(each.encoded_bytes < each.file_bytes for each in result.stages)


def test_models_of_pytorch_are_compressed_without_training():
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = ModelCompressor(0.5, 8).compress(model)
    assert result.stages[1].sparsity == 0.5
    assert result.stages[0].file_bytes > result.file_bytes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    weight = torch.from_numpy(result.state["0.weight"].dequantize())
    assert torch.equal(result.model[0].weight.detach(), weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 80}, "80% is 0.8"),
        ({"sparsity": 1}, "every weight to zero"),
        ({"bits": 5}, "8 or 4"),
        ({"scope": "row"}, "unknown scope"),
        ({"keep": "layers.0"}, "keep is a tuple"),
        ({"epochs": -1}, "epochs is a number of passes"),
        ({"rounding_epochs": 1.5}, "rounding_epochs is a number of passes"),
        ({"margin": -1}, "margin=-1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        ModelCompressor(**settings)


def test_data_that_can_be_read_once_is_refused():
    with pytest.raises(SettingError, match="several times, which a generator cannot"):
        ModelCompressor().compress(digits_workload(), (batch for batch in ()))
