import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from optimized_stacks import entry_of, recommending
from parts import require_part

torch = require_part("torch")
require_part("torchao")

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_transformers import bert, gpt2
from torch import nn
from torch_workloads import ADAPTER, Residual, Tied, mlp, seeded, workload

from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import build_mlp
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.saving import save_optimized
from tinytorch.tuning.saving_torch import TorchStorage

CASES = {
    "mlp": lambda: workload(seeded(mlp), 8, 128),
    "residual": lambda: workload(seeded(Residual), 2, 3, 16, 16),
    "tied": lambda: workload(seeded(Tied), 2, 6, vocabulary=96),
    "lstm": lambda: workload(seeded(nn.LSTM, 16, 16), 4, 2, 16),
    "bert": lambda: workload(bert(hidden_size=64, intermediate_size=128), 2, 8, vocabulary=50),
    "gpt2": lambda: workload(gpt2(n_embd=64), 2, 8, vocabulary=50),
}
STACKS = [
    ("mlp", "int8-dynamic"),
    ("mlp", "int8-static"),
    ("mlp", "int8-weights"),
    ("mlp", "int4-weights"),
    ("mlp", "bfloat16"),
    ("mlp", "bfloat16-layers"),
    ("mlp", "inference-mode"),
    ("mlp", "fewer-layers"),
    ("residual", "fold-batch-norm"),
    ("residual", "channels-last"),
    ("residual", "int8-weights"),
    ("residual", "int8-static"),
    ("residual", "fold-batch-norm", "bfloat16-layers", "channels-last", "inference-mode"),
    ("tied", "int8-weights"),
    ("tied", "bfloat16"),
    ("bert", "bfloat16-layers"),
    ("bert", "int8-dynamic"),
    ("bert", "int8-weights", "inference-mode"),
    ("gpt2", "int8-dynamic"),
    ("gpt2", "bfloat16"),
]
COMPILED = [("mlp", "compiled"), ("mlp", "int8-weights", "compiled"), ("bert", "compiled")]


def test_a_factory_that_reads_its_weights_is_loaded_without_warnings(tmp_path):
    case, file = CASES["mlp"](), tmp_path / "weights.pt"
    torch.save(case.model.state_dict(), file)

    def build():
        model = seeded(mlp)
        model.load_state_dict(torch.load(file, weights_only=True))
        warnings.warn("mine", UserWarning, stacklevel=1)
        return model.eval()

    found = recommending(case, "inference-mode")
    save_optimized(found, tmp_path / "best", workload=case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_optimized(tmp_path / "best", build)
    assert {str(each.message) for each in caught if "meta" in str(each.message)} == set()
    assert "mine" in {str(each.message) for each in caught}
    x = case.arguments[0][0]
    assert torch.equal(model(x), case.model(x))


def test_a_convolution_and_a_product_in_int8_are_saved_as_they_are(tmp_path):
    def build():
        layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
        return nn.Sequential(*layers).eval()

    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    case = Workload("it", build(), (x,), calibration=[(x,)])
    found = recommending(case, "int8-static")
    save_optimized(found, tmp_path / "best", workload=case)
    held = load_file(tmp_path / "best" / "model.safetensors")
    assert torch.int8 in {each.dtype for each in held.values()}  # not the original floats
    assert torch.equal(load_optimized(tmp_path / "best", case)(x), found.model(x))


@pytest.fixture
def saved(tmp_path):
    """Give a workload of which something was saved, and the file."""
    case = CASES["mlp"]()
    save_optimized(recommending(case, "bfloat16-layers"), tmp_path / "best", workload=case)
    return case, tmp_path / "best"


def elsewhere(case):
    """Give the workload as another process has it: the same architecture, other weights."""
    return replace(case, model=TorchStorage().with_other_weights(case.model))


def outputs(case, model):
    with torch.no_grad():
        return ADAPTER.arrays(replace(case, model=model).run())


def check_round_trip(tmp_path, name, *stack, tolerance=0.0):
    case = CASES[name]()
    optimization = recommending(case, *stack)
    found = save_optimized(optimization, tmp_path / "model.safetensors", workload=case)
    loaded = load_optimized(found.path, elsewhere(case))
    pairs = zip(outputs(case, loaded), outputs(case, optimization.model), strict=True)
    for given, expected in pairs:
        np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance)
    return found, loaded


@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name, *stack in STACKS])
def test_a_loaded_model_computes_the_same_bit_for_bit(tmp_path, name, stack):
    check_round_trip(tmp_path, name, *stack)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name, *stack in COMPILED])
def test_what_is_compiled_is_compiled_again(tmp_path, name, stack):
    found, loaded = check_round_trip(tmp_path, name, *stack, tolerance=1e-5)
    assert loaded.preparations[0].what == "compiled"
    assert "CompileModel is carried out again when loading" in found.notes
    with pytest.raises(SettingError, match="give a workload"):
        load_optimized(found.path, CASES[name]().model)


def test_plain_tensors_have_the_names_of_the_state_dict(tmp_path):
    case = CASES["mlp"]()
    optimization = recommending(case, "bfloat16", "inference-mode")
    found = save_optimized(optimization, tmp_path / "model.safetensors", workload=case)
    tensors = load_file(found.path)
    assert tensors.keys() == case.model.state_dict().keys()
    assert {each.dtype for each in tensors.values()} == {torch.bfloat16}
    assert found.format == "safetensors"


def test_a_tied_weight_is_written_once_and_tied_again(tmp_path):
    case = CASES["tied"]()
    optimization = recommending(case, "inference-mode")
    found = save_optimized(optimization, tmp_path / "model.safetensors", workload=case)
    loaded = load_optimized(found.path, elsewhere(case))
    assert len(load_file(found.path)) == len(case.model.state_dict()) - 1
    assert loaded.heads[0].weight is loaded.table.weight


def test_whole_numbers_take_fewer_bytes_than_floats(tmp_path):
    found, loaded = check_round_trip(tmp_path, "mlp", "int8-dynamic")
    held = sum(each.numel() * 4 for each in CASES["mlp"]().model.parameters())
    assert found.nbytes < 0.4 * held
    assert type(loaded[0]).__module__.startswith("torch.ao.nn.quantized")


def test_what_no_file_holds_is_made_from_the_original_weights(tmp_path):
    found, _ = check_round_trip(tmp_path, "lstm", "int8-dynamic")
    assert "the weights of the original; Quantize is carried out again" in found.notes[0]
    assert "ScriptObject" in found.notes[0]
    assert load_file(found.path).keys() == CASES["lstm"]().model.state_dict().keys()


def test_a_workload_with_other_weights_is_refused_where_they_cannot_be_seen(tmp_path):
    case = CASES["lstm"]()
    optimization = recommending(case, "int8-dynamic")
    with pytest.raises(SettingError, match="give the workload that was optimized"):
        save_optimized(optimization, tmp_path / "best", workload=elsewhere(case))
    assert not any(tmp_path.iterdir())


def test_a_number_of_threads_is_set_again(tmp_path):
    case = CASES["mlp"]()
    threads = torch.get_num_threads() + 1
    optimization = recommending(case, entry_of(SetThreads(threads=threads, budget_s=0.01)))
    found = save_optimized(optimization, tmp_path / "best", workload=case)
    assert load_optimized(found.path, case.model).threads == threads


def test_loading_leaves_the_given_model_as_it_is(saved):
    case, path = saved
    given = elsewhere(case).model
    before = TorchStorage().digests(given)
    loaded = load_optimized(path, given)
    assert TorchStorage().digests(given) == before
    assert TorchStorage().digests(loaded) != before


# ---------------------------------------------------------------- what cannot be loaded


def test_a_byte_that_changed_is_noticed(saved):
    case, path = saved
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not those that were saved"):
        load_optimized(path, case)


@pytest.mark.parametrize("keep", [0, 7, 300, -1])
def test_a_truncated_file_is_refused(saved, keep):
    case, path = saved
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_optimized(path, case)


def rewritten(path, change, **texts):
    file = path / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        known = opened.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata=known | texts)


def test_missing_and_foreign_tensors_are_named(saved):
    case, path = saved

    def change(tensors):
        del tensors["0.bias"]
        tensors["other"] = torch.ones(2)
        tensors["2.bias"] = tensors["2.bias"].double()

    rewritten(path, change)
    with pytest.raises(CheckpointError) as caught:
        load_optimized(path, case)
    text = str(caught.value)
    assert "the file has no '0.bias'" in text
    assert "the file has 'other', the model does not" in text
    assert "'2.bias' is (32,) of torch.float64 in the file" in text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"recipe": "{"}, "its recipe is damaged"),
        ({"recipe": json.dumps({"format": "x"})}, "no file of save_optimized"),
        ({"same": "["}, "damaged"),
        ({"same": "[1]"}, "damaged"),
    ],
)
def test_damaged_texts_are_refused(saved, texts, expected):
    case, path = saved
    rewritten(path, lambda tensors: None, **texts)
    with pytest.raises(CheckpointError, match=expected):
        load_optimized(path, case)


def test_a_model_of_another_framework_or_architecture_is_refused(saved):
    _, path = saved
    with pytest.raises(CheckpointError, match="holds a model of pytorch"):
        load_optimized(path, build_mlp(rng=1))
    with pytest.raises(CheckpointError, match="another architecture than this Sequential"):
        load_optimized(path, seeded(mlp, 64))


def test_a_function_around_a_model_says_that_it_holds_nothing(saved):
    case, path = saved
    model = case.model
    with pytest.raises(SettingError, match="is no module of PyTorch"):
        load_optimized(path, Workload("function", lambda x: model(x), case.inputs))
