"""Saved PyTorch models are loaded without float weights, whatever gives the architecture."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from optimized_stacks import recommending
from parts import require_part

torch = require_part("torch")
require_part("torchao")

from tiny_transformers import bert, gpt2
from torch import nn
from torch_workloads import ADAPTER, Residual, Tied, mlp, seeded, workload

from tinytorch.errors import CheckpointError
from tinytorch.models.workload import Workload
from tinytorch.tuning.fresh_process import measure_process_memory
from tinytorch.tuning.loading import FLOATS_HELD, load_optimized, storage_of
from tinytorch.tuning.saving import save_optimized
from tinytorch.tuning.saving_torch import give_room, on_meta, without_numbers

BUILT = {
    "mlp": (partial(seeded, mlp), (8, 128), {}),
    "residual": (partial(seeded, Residual), (2, 3, 16, 16), {}),
    "tied": (partial(seeded, Tied), (2, 6), {"vocabulary": 96}),
    "bert": (partial(bert, hidden_size=64, intermediate_size=128), (2, 8), {"vocabulary": 50}),
    "gpt2": (partial(gpt2, n_embd=64), (2, 8), {"vocabulary": 50}),
}
WITHOUT_FLOATS = [
    ("mlp", "int8-dynamic"),
    ("mlp", "int8-weights"),
    ("mlp", "int4-weights"),
    ("mlp", "bfloat16"),
    ("mlp", "inference-mode"),
    ("mlp", "fewer-layers"),
    ("residual", "fold-batch-norm"),
    ("residual", "channels-last"),
    ("residual", "int8-weights"),
    ("tied", "int8-weights"),
    ("bert", "bfloat16-layers"),
    ("bert", "int8-dynamic"),
    ("bert", "int8-weights", "inference-mode"),
    ("gpt2", "int8-dynamic"),
]


def case_of(name):
    build, shape, settings = BUILT[name]
    return workload(build().eval(), *shape, **settings)


def outputs(case, model):
    with torch.no_grad():
        return ADAPTER.arrays(replace(case, model=model).run())


def check_same(case, one, other):
    for given, expected in zip(outputs(case, one), outputs(case, other), strict=True):
        np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name, *stack in WITHOUT_FLOATS])
def test_a_function_that_builds_the_model_is_enough(tmp_path, name, stack):
    case = case_of(name)
    optimization = recommending(case, *stack)
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    assert not [note for note in found.notes if note.startswith(FLOATS_HELD)]
    notes = []
    loaded = load_optimized(found.path, lambda: BUILT[name][0]().eval(), on_note=notes.append)
    check_same(case, loaded, optimization.model)
    assert notes == []


@pytest.fixture
def saved(tmp_path):
    case = case_of("mlp")
    optimization = recommending(case, "int8-weights")
    return case, optimization, save_optimized(optimization, tmp_path / "best", workload=case).path


def test_every_form_of_the_architecture_gives_the_same(saved, tmp_path, monkeypatch):
    case, optimization, path = saved
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def build():\n"
        "    layers = nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)"
        "\n    return nn.Sequential(*layers).eval(), torch.ones(8, 128)\n"
    )
    plain = seeded(mlp).eval()
    shapes = [tuple(each.shape) for each in plain.parameters()]
    source = f"{tmp_path / 'mine.py'}:build"
    forms = {
        "model": plain,
        "workload": replace(case, model=plain),
        "builds a workload": lambda: replace(case, model=seeded(mlp).eval()),
        "builds a model and inputs": lambda: (seeded(mlp).eval(), case.inputs),
        "partial": partial(seeded, mlp),
    }
    from tinytorch.models.targets import load_workload

    if [tuple(each.shape) for each in load_workload(source).model.parameters()] == shapes:
        forms["target"] = source
    for form in forms.values():
        check_same(case, load_optimized(path, form).eval(), optimization.model)


def test_without_anything_the_file_has_to_say_how_the_model_is_built(saved):
    _, _, path = saved
    with pytest.raises(CheckpointError, match="give a function that builds one"):
        load_optimized(path)


@pytest.mark.parametrize("stack", [("int8-weights",), ("bfloat16-layers", "inference-mode")])
def test_a_model_of_transformers_needs_nothing(tmp_path, stack):
    case = case_of("bert")
    optimization = recommending(case, *stack)
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    check_same(case, load_optimized(found.path), optimization.model)


def test_a_class_that_is_no_model_of_transformers_is_refused():
    described = {"transformers": "pipeline", "config": {}, "attention": None, "dtype": "float32"}
    with pytest.raises(CheckpointError, match="no model 'pipeline'"):
        storage_of("pytorch").built(described)


# ---------------------------------------------------------------- without numbers


class Rotary(nn.Module):
    """Computes tables and attributes in __init__ that no file has."""

    def __init__(self, how="arange"):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        table = torch.outer(torch.arange(4.0), 10000 ** (-torch.arange(0, 8) / 8.0))
        if how == "empty":
            table = torch.empty(4, 8).fill_(2.0)
        self.register_buffer("table", table, persistent=False)
        self.offsets = [torch.arange(8.0)]
        self.depth = torch.linspace(0, 1, 4)[1].item()

    def forward(self, x):
        return self.proj(x) * self.scale * self.table[1] + self.offsets[0] * self.depth


def rotary_case(how):
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    return Workload("rotary", Rotary(how).eval(), (inputs,))


def test_what_a_model_computes_in_its_init_is_right(tmp_path):
    case = rotary_case("arange")
    optimization = recommending(case, "int8-weights")
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    notes = []
    loaded = load_optimized(found.path, lambda: Rotary().eval(), on_note=notes.append)
    check_same(case, loaded, optimization.model)
    assert notes == []


def test_what_cannot_be_built_without_numbers_is_built_with_them_and_said(tmp_path):
    case = rotary_case("empty")
    optimization = recommending(case, "int8-weights")
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    notes = []
    loaded = load_optimized(found.path, lambda: Rotary("empty").eval(), on_note=notes.append)
    check_same(case, loaded, optimization.model)
    (note,) = notes
    assert note.startswith(FLOATS_HELD)
    assert "'table'" in note


def test_a_factory_may_move_and_cast_what_it_builds(tmp_path):
    case = case_of("mlp")
    optimization = recommending(case, "int8-weights")
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    notes = []

    def build():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # copies into what has no numbers do nothing
            model = seeded(mlp)
            model.load_state_dict(case.model.state_dict())
        return model.to("cpu", torch.float32).cpu().eval()

    check_same(case, load_optimized(found.path, build, on_note=notes.append), optimization.model)
    assert notes == []


def test_parameters_have_no_numbers_and_buffers_do():
    with on_meta():
        model = Rotary()
    assert {name for name, each in model.named_parameters() if each.is_meta} == {
        "proj.weight",
        "proj.bias",
    }
    assert torch.equal(model.scale, torch.ones(8))
    empty = without_numbers(model)
    assert all(each.is_meta for each in empty.parameters())
    assert torch.equal(empty.table, Rotary().table)
    assert not model.scale.is_meta


def test_a_tensor_with_several_names_stays_one():
    model = without_numbers(seeded(Tied))
    give_room(model, "cpu")
    assert model.heads[0].weight is model.table.weight
    assert not any(each.is_meta for each in model.parameters())


def test_a_layer_that_lists_its_weights_has_the_new_ones():
    model = without_numbers(nn.LSTM(4, 4))
    give_room(model, "cpu")
    assert [id(each) for each in model._flat_weights] == [id(each) for each in model.parameters()]


# ---------------------------------------------------------------- what a process takes

WIDE = """
import torch
import torchao.quantization
from torch import nn

def build():
    torch.manual_seed(0)
    layers = [nn.Linear(1024, 1024) for _ in range(24)]
    return nn.Sequential(*layers).eval(), torch.ones(1, 1024)
"""
WIDE_BYTES = 24 * 4 * 1024 * 1025


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["int8-dynamic", "int8-weights"])
def test_a_process_that_loads_a_saved_model_never_holds_the_floats(tmp_path, entry):
    (tmp_path / "wide.py").write_text(WIDE)
    target = f"{tmp_path / 'wide.py'}:build"
    from tinytorch.models.targets import load_workload

    case = load_workload(target)
    found = save_optimized(recommending(case, entry), tmp_path / "best", workload=case)
    process = measure_process_memory(found.path, case, target=target)
    assert process.not_measured == {}
    assert process.baseline.grown_bytes > 0.9 * WIDE_BYTES
    assert process.saved.grown_bytes < 0.7 * WIDE_BYTES
    if process.saved.loading_peak_bytes is not None:
        most = process.saved.loading_peak_bytes - process.saved.before_bytes
        assert most < 0.75 * WIDE_BYTES


def test_what_cannot_go_into_another_process_is_a_reason(saved):
    case, _, path = saved
    odd = replace(case, keywords={"hook": lambda: None})
    process = measure_process_memory(path, odd)
    assert (process.baseline, process.saved) == (None, None)
    assert set(process.not_measured) == {"baseline", "saved"}
