import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from optimized_stacks import entry_of, recommended, recommending

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import save_checkpoint, write_arrays
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.formats.weights_file import describe_weights
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import build_cnn, build_gpt, build_mlp, load_zoo
from tinytorch.transforms.compiled_kernels import CompiledKernels
from tinytorch.transforms.kernel_choice import model_backend
from tinytorch.transforms.prune import Prune
from tinytorch.transforms.sparse_layers import SparseLayers, SparseLinear
from tinytorch.tuning import loading, saving
from tinytorch.tuning.attempt import Settings
from tinytorch.tuning.loading import CoreStorage, load_optimized
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.recipe import Recipe
from tinytorch.tuning.saving import SavedModel, save_optimized

BUILT = {"mlp": build_mlp, "cnn": build_cnn, "gpt": build_gpt}
NUMBERS = ("int8-dynamic", "int8-static", "int8-weights", "int4-weights")
STACKS = {
    "mlp": [
        ("fewer-channels",),
        ("low-rank",),
        ("fused-layers",),
        *((each,) for each in NUMBERS),
        ("fewer-channels", "int8-dynamic", "fused-layers"),
        ("low-rank", "int8-weights"),
    ],
    "cnn": [("fewer-channels",), ("low-rank",), *((each,) for each in NUMBERS)],
    "gpt": [
        ("fused-layers",),
        *((each,) for each in NUMBERS if each != "int8-static"),
    ],
}


def outputs(workload, model):
    with no_grad():
        return replace(workload, model=model).run().data


def small_model(rng=0):
    layers = Linear(64, 32, rng=rng), ReLU(), Linear(32, 10, rng=rng)
    return Sequential(*layers)


def small_workload():
    inputs = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    return Workload("small", small_model(), (Tensor(inputs),))


@pytest.fixture
def optimized():
    """Give a workload and what recommends something for it."""
    workload = small_workload()
    return workload, recommending(workload, "int8-dynamic", "fused-layers")


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        *((name, stack) for name, stacks in STACKS.items() for stack in stacks),
        pytest.param("gpt", ("fewer-layers",), marks=pytest.mark.slow),
        pytest.param("gpt", ("low-rank", "int8-dynamic"), marks=pytest.mark.slow),
    ],
)
def test_a_loaded_model_computes_the_same_bit_for_bit(tmp_path, monkeypatch, name, stack):
    monkeypatch.setattr(saving, "CODED_BELOW_BYTES", 0)  # coding takes longer than all the rest
    workload = load_zoo(name)
    optimization = recommending(workload, *stack)
    saved = save_optimized(optimization, tmp_path / "model.safetensors", workload=workload)
    loaded = load_optimized(saved.path, BUILT[name](rng=1))
    expected = outputs(workload, optimization.model)
    assert np.array_equal(outputs(workload, loaded), expected)
    assert saved.nbytes == saved.path.stat().st_size


def test_zeros_are_left_out_of_files_and_layers_become_sparse_again(tmp_path):
    stack = entry_of(Prune(sparsity=0.8), SparseLayers(goal="memory"))  # nothing is measured
    workload = small_workload()
    optimization = recommending(workload, stack)
    saved = save_optimized(optimization, tmp_path / "model.safetensors", workload=workload)
    loaded = load_optimized(saved.path, small_model(rng=1))
    assert any(isinstance(each, SparseLinear) for each in loaded.modules())
    assert np.array_equal(outputs(workload, loaded), outputs(workload, optimization.model))
    assert saved.notes == ("SparseLayers is carried out again when loading",)
    names = describe_weights(saved.path).arrays
    assert [each.name for each in names if "indices" in each.name] == []


def test_a_backend_is_set_again(tmp_path):
    workload = small_workload()
    optimization = recommending(workload, entry_of(CompiledKernels(backend="reference")))
    saved = save_optimized(optimization, tmp_path / "model.safetensors", workload=workload)
    loaded = load_optimized(saved.path, small_model(rng=1))
    assert model_backend(loaded).name == "reference"
    assert saved.notes == ("CompiledKernels is carried out again when loading",)


def test_a_folder_holds_weights_and_a_readable_recipe(tmp_path, optimized):
    workload, optimization = optimized
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    assert sorted(each.name for each in saved.path.iterdir()) == [
        "README.md",
        "load.py",
        "model.safetensors",
        "recipe.json",
    ]
    recipe = Recipe.from_dict(json.loads((saved.path / "recipe.json").read_text("utf-8")))
    assert (recipe.name, recipe.stack) == ("small", ("int8-dynamic", "fused-layers"))
    assert saved.nbytes == sum(each.stat().st_size for each in saved.path.iterdir())
    loaded = load_optimized(saved.path, workload)
    assert np.array_equal(outputs(workload, loaded), outputs(workload, optimization.model))


def test_loading_leaves_the_given_model_as_it_is(tmp_path, optimized):
    workload, optimization = optimized
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    given = small_model(rng=1)
    before = CoreStorage().digests(given)
    load_optimized(saved.path, given)
    assert CoreStorage().digests(given) == before


def test_the_same_optimization_gives_the_same_bytes(tmp_path, optimized):
    workload, optimization = optimized
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in paths:
        save_optimized(optimization, path, workload=workload)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_an_optimization_that_was_read_back_can_be_saved(tmp_path, optimized):
    workload, optimization = optimized
    read = Optimization.from_dict(json.loads(json.dumps(optimization.to_dict())))
    assert recommended(read).model is None
    saved = save_optimized(read, tmp_path / "best", workload=workload)
    loaded = load_optimized(saved.path, small_model(rng=1))
    assert np.array_equal(outputs(workload, loaded), outputs(workload, optimization.model))


def test_larger_weights_are_coded_where_size_is_the_goal(tmp_path, monkeypatch, optimized):
    workload, optimization = optimized
    monkeypatch.setattr(saving, "CODED_BELOW_BYTES", 0)
    quick = save_optimized(optimization, tmp_path / "a.safetensors", workload=workload)
    wanted = recommended(replace(optimization, settings=Settings(goal="size")))
    small = save_optimized(wanted, tmp_path / "b.safetensors", workload=workload)
    assert small.nbytes < quick.nbytes
    assert (quick.format, small.format) == ("weights file", "compressed weights file")


# ---------------------------------------------------------------- what cannot be saved


def test_where_nothing_is_recommended_there_is_nothing_to_save(tmp_path, optimized):
    workload, optimization = optimized
    nothing = replace(optimization, attempts=())
    with pytest.raises(SettingError, match="there is nothing to save"):
        save_optimized(nothing, tmp_path / "best", workload=workload)
    assert not any(tmp_path.iterdir())


def test_a_workload_with_other_weights_is_refused(tmp_path, optimized):
    workload, optimization = optimized
    other = replace(workload, model=small_model(rng=1))
    with pytest.raises(SettingError, match="give the workload that was optimized"):
        save_optimized(optimization, tmp_path / "best", workload=other)
    assert not any(tmp_path.iterdir())


def test_what_is_no_workload_is_refused(tmp_path, optimized):
    workload, optimization = optimized
    with pytest.raises(SettingError, match="made for a Workload"):
        save_optimized(optimization, tmp_path / "best", workload=workload.model)


@pytest.mark.parametrize("place", ["best", "best.safetensors"])
def test_a_full_disk_leaves_what_was_there_before(tmp_path, monkeypatch, optimized, place):
    workload, optimization = optimized
    path = tmp_path / place
    save_optimized(optimization, path, workload=workload)
    files = [each for each in sorted(tmp_path.rglob("*")) if each.is_file()]
    before = [each.read_bytes() for each in files]

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
        save_optimized(optimization, path, workload=workload)
    assert [each for each in sorted(tmp_path.rglob("*")) if each.is_file()] == files
    assert [each.read_bytes() for each in files] == before


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, optimized):
    workload, optimization = optimized

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(CoreStorage, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_optimized(optimization, tmp_path / "best", workload=workload)
    assert not any(tmp_path.iterdir())


def test_a_place_that_is_no_folder_is_an_error(tmp_path, optimized):
    workload, optimization = optimized
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_optimized(optimization, tmp_path / "taken", workload=workload)
    assert (tmp_path / "taken").read_text() == "a file"


def test_where_the_end_of_a_stack_cannot_be_kept_the_weights_before_it_are(
    tmp_path, monkeypatch, optimized
):
    workload, optimization = optimized
    rebuild = CoreStorage.rebuild

    def rebuild_floats(self, path, workload, recipe):
        if recipe.weights_after:
            raise CheckpointError("whole numbers are not for today")
        return rebuild(self, path, workload, recipe)

    monkeypatch.setattr(CoreStorage, "rebuild", rebuild_floats)
    saved = save_optimized(optimization, tmp_path / "best", workload=workload)
    assert "holds the weights of the original; Quantize is carried out again" in saved.notes[0]
    assert "whole numbers are not for today" in saved.notes[0]
    loaded = load_optimized(saved.path, small_model(rng=1))
    assert np.array_equal(outputs(workload, loaded), outputs(workload, optimization.model))


def test_what_could_not_be_read_back_is_not_written(tmp_path, monkeypatch, optimized):
    workload, optimization = optimized
    monkeypatch.setattr(CoreStorage, "rebuild", lambda self, path, workload, recipe: workload.model)
    with pytest.raises(CheckpointError, match="what is read back is not what was written"):
        save_optimized(optimization, tmp_path / "best", workload=workload)
    assert not any(tmp_path.iterdir())


# ---------------------------------------------------------------- what cannot be loaded


@pytest.fixture
def saved(tmp_path, optimized):
    workload, optimization = optimized
    found = save_optimized(optimization, tmp_path / "best", workload=workload)
    assert isinstance(found, SavedModel)
    return found


def test_a_missing_part_is_named(tmp_path, saved):
    (saved.path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights in"):
        load_optimized(saved.path, small_model(rng=1))
    with pytest.raises(CheckpointError, match="no saved model at"):
        load_optimized(tmp_path / "elsewhere", small_model(rng=1))


def test_another_architecture_is_refused(saved):
    with pytest.raises(CheckpointError, match="another architecture than this GPT"):
        load_optimized(saved.path, build_gpt(rng=1))
    narrow = Sequential(Linear(64, 8, rng=0), Linear(8, 10, rng=0))
    with pytest.raises(CheckpointError, match=r"model.safetensors: .* another architecture"):
        load_optimized(saved.path, narrow)


@pytest.mark.parametrize("keep", [0, 7, 100, 1000, -1])
def test_a_truncated_file_is_refused(saved, keep):
    file = saved.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_optimized(saved.path, small_model(rng=1))


def test_a_byte_that_changed_is_noticed(saved):
    file = saved.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-50] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_optimized(saved.path, small_model(rng=1))


def test_files_of_others_are_refused(tmp_path):
    model = small_model(rng=1)
    save_checkpoint(tmp_path / "checkpoint.safetensors", model)
    write_arrays(tmp_path / "odd.safetensors", {"a": np.ones(3)}, {"recipe": "{"})
    (tmp_path / "text").write_text("hello")
    for name in ("checkpoint.safetensors", "odd.safetensors"):
        with pytest.raises(CheckpointError, match="no file of save_optimized"):
            load_optimized(tmp_path / name, model)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load_optimized(tmp_path / "text", model)


def test_a_recipe_of_another_framework_is_refused(tmp_path, monkeypatch, saved):
    fields = json.loads((saved.path / "recipe.json").read_text("utf-8"))
    monkeypatch.setattr(loading, "_read_recipe", lambda path: fields | {"framework": "pytorch"})
    with pytest.raises(CheckpointError, match="holds a model of pytorch"):
        load_optimized(saved.path, small_model(rng=1))


def test_weights_that_are_not_those_of_the_recipe_are_noticed(monkeypatch, saved):
    fields = json.loads((saved.path / "recipe.json").read_text("utf-8"))
    other = fields | {"weights_sha256": "0" * 64}
    monkeypatch.setattr(loading, "_read_recipe", lambda path: other)
    with pytest.raises(CheckpointError, match="not those that were saved"):
        load_optimized(saved.path, small_model(rng=1))


def test_outputs_decide_with_fractions_and_with_whole_numbers():
    class Rounded(Sequential):
        def forward(self, x):
            return Tensor((super().forward(x).data * 100).astype(np.int64))

    workload = small_workload()
    layers = [Sequential(Linear(64, 10, rng=rng)) for rng in (0, 1)]
    whole = [Rounded(Linear(64, 10, rng=rng)) for rng in (0, 1)]
    for one, other in (layers, whole):
        assert saving._gives_the_same(workload, one, one)
        assert not saving._gives_the_same(workload, one, other)
