"""Other engines: exported models compute what the original computes, called as it is called."""

import copy
import gc
import json
import subprocess
import sys
import weakref
from collections import namedtuple
from dataclasses import dataclass, replace

import numpy as np
import pytest
from parts import hide_package, require_part

torch = require_part("torch")
for part in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    require_part(part)
nn = torch.nn

from tinytorch.errors import CheckpointError, ModelError, SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.engines import (
    AotInductor,
    OnnxRuntime,
    OnnxRuntimeInt8,
    OpenVino,
    OpenVinoBfloat16,
    OpenVinoInt8,
)
from tinytorch.transforms.engines.export import Exported, Signature
from tinytorch.transforms.engines.files import sha256_of
from tinytorch.transforms.engines.torch import EngineModel, read_model

EXACT = (OnnxRuntime(), OpenVino())
ROUNDING = 1e-5
"""Relative to the largest output: other kernels sum in another order."""
INT8 = 0.1
"""Activations have 256 steps, and two layers add up their errors."""


@dataclass
class Found:
    scores: object
    hidden: object = None


class Tagger(nn.Module):
    """Tokens in, a nested output; an argument that may be left out, and one that is no tensor."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.inner = nn.Linear(8, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens, mask=None, *, scale=1.0):
        hidden = torch.relu(self.inner(self.embed(tokens)))
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return {"tags": self.out(hidden) * scale, "state": (hidden, [hidden.sum(1)])}


def tagger(**keywords):
    torch.manual_seed(0)
    tokens, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7)
    return Workload("tagger", Tagger().eval(), (tokens, mask), keywords=keywords)


def images(calibration=True):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 5),
    )
    data = [(torch.randn(4, 1, 8, 8),) for _ in range(4)] if calibration else ()
    return Workload("images", model.eval(), (torch.randn(1, 1, 8, 8),), calibration=data)


def made(transform, workload):
    plan = transform.plan(workload)
    assert not plan.is_empty, plan.skipped
    return transform.apply(workload, plan)


def assert_close(found, expected, tolerance=ROUNDING):
    pairs = list(
        zip(*(adapter_for(Tagger()).arrays(each) for each in (found, expected)), strict=True)
    )
    assert pairs
    for one, other in pairs:
        assert one.shape == other.shape
        assert abs(one - other).max() <= tolerance * abs(other).max()


def reason(transform, workload):
    plan = transform.plan(workload)
    assert plan.is_empty
    return plan.skipped[0].reason


@pytest.fixture(scope="module")
def exported():
    workload = tagger(scale=2.0)
    return workload, made(OnnxRuntime(), workload)


@pytest.mark.parametrize("transform", EXACT, ids=lambda each: each.name)
def test_outputs_and_their_nesting_are_those_of_the_model(transform):
    workload = tagger(scale=2.0)
    found = made(transform, workload)(*workload.inputs, **workload.keywords)
    expected = workload.model(*workload.inputs, **workload.keywords)
    assert list(found) == ["tags", "state"]
    assert isinstance(found["state"], tuple)
    assert isinstance(found["state"][1], list)
    assert_close(found, expected)


def test_batch_and_sequence_stay_open(exported):
    workload, model = exported
    assert [each.shape for each in model.exported.signature.inputs] == [(None, None)] * 2
    for rows, length in ((1, 7), (1, 1), (5, 3), (3, 12)):
        tokens, mask = torch.randint(0, 50, (rows, length)), torch.rand(rows, length)
        expected = workload.model(tokens, mask, scale=2.0)
        assert_close(model(tokens, mask, scale=2.0), expected)


def test_arguments_may_come_by_place_or_by_name(exported):
    workload, model = exported
    tokens, mask = workload.inputs
    assert_close(model(mask=mask, tokens=tokens, scale=2.0), model(tokens, mask, scale=2.0))


@pytest.mark.parametrize(
    ("inputs", "keywords"),
    [
        ((0,), {"scale": 2.0}),  # the mask is missing
        ((0, 1), {"scale": 3.0}),  # a constant of another value
        ((0, 1, 1), {}),  # too many
    ],
)
def test_another_kind_of_call_is_refused(exported, inputs, keywords):
    workload, model = exported
    with pytest.raises(ModelError):
        model(*(workload.inputs[place] for place in inputs), **keywords)


def test_tensors_of_another_dtype_or_rank_are_refused_by_name(exported):
    workload, model = exported
    tokens, mask = workload.inputs
    with pytest.raises(ModelError, match="tokens int64"):
        model(tokens.float(), mask, scale=2.0)
    with pytest.raises(ModelError, match="mask float32"):
        model(tokens, mask[0], scale=2.0)


def test_fixed_axes_are_named_in_the_plan_and_checked():
    class Fixed(nn.Module):
        def forward(self, x):
            return x + torch.arange(3.0).reshape(3, 1)

    workload = Workload("fixed", Fixed().eval(), (torch.randn(3, 2),))
    model = made(OnnxRuntime(), workload)
    assert model.exported.signature.inputs[0].shape == (3, 2)
    with pytest.raises(ModelError, match="x float32"):
        model(torch.randn(1, 2))


def test_a_copy_computes_the_same_and_the_workload_stays(exported):
    workload, model = exported
    twin = copy.deepcopy(model)
    assert twin.exported is model.exported
    assert_close(twin(*workload.inputs, scale=2.0), model(*workload.inputs, scale=2.0))
    assert type(workload.model) is Tagger


def write_through_data(model):
    model[5].weight.data.mul_(2)


def put_another_layer(model):
    model[2] = nn.Sigmoid()


@pytest.mark.parametrize("change", [write_through_data, put_another_layer])
def test_a_plan_of_other_weights_or_layers_is_not_applied(change):
    workload = images()
    plan = OnnxRuntime().plan(workload)
    change(workload.model)
    with torch.no_grad():
        assert_close(OnnxRuntime().apply(workload, plan)(*workload.inputs), workload.run())


def test_a_plan_keeps_no_model_alive():
    workload = images()
    plan = OnnxRuntime().plan(workload)
    model = weakref.ref(workload.model)
    assert plan.steps
    del workload
    gc.collect()
    assert model() is None


def test_it_stays_in_evaluation_mode_and_declares_its_setup(exported):
    _, model = exported
    assert not model.train().training
    assert [each.what for each in model.preparations] == [
        "exported to ONNX Runtime",
        "exported to ONNX Runtime while planning",
    ]


def test_memory_in_another_engine_is_not_counted_as_none(exported):
    _, model = exported
    assert adapter_for(model).packed_layers(model) == ("",)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_int8_stays_close_to_the_float_model(mode):
    workload = images()
    model = made(OnnxRuntimeInt8(mode=mode), workload)
    x = torch.randn(6, 1, 8, 8)
    assert_close(model(x), workload.model(x), INT8)
    operators = {each.op_type for each in onnx_graph(model).node}
    assert operators & {"MatMulInteger", "DequantizeLinear"}


def test_dynamic_int8_has_a_scale_for_each_output_where_asked():
    scales = [
        max(each.dims[0] if each.dims else 1 for each in onnx_graph(model).initializer
            if each.name.endswith("scale"))
        for model in (
            made(OnnxRuntimeInt8(per_channel=wanted), images()) for wanted in (False, True)
        )
    ]  # fmt: skip
    assert scales[0] == 1 < scales[1]


@pytest.mark.slow
def test_nncf_quantizes_for_openvino():
    require_part("nncf")
    workload = images()
    model = made(OpenVinoInt8(), workload)
    x = torch.randn(6, 1, 8, 8)
    assert_close(model(x), workload.model(x), INT8)
    text = (model.exported.folder / "model.xml").read_text("utf-8")
    assert "FakeQuantize" in text or 'element_type="i8"' in text
    assert model.exported.folder != made(OpenVino(), workload).exported.folder


def test_nncf_needs_calibration_data_and_names_its_extra(monkeypatch):
    require_part("nncf")
    assert reason(OpenVinoInt8(), images(calibration=False)) == "needs calibration data"
    hide_package(monkeypatch, "nncf")
    assert "[nncf]" in reason(OpenVinoInt8(), images())
    assert OpenVinoInt8().missing_extras == ("nncf",)


def onnx_graph(model):
    import onnx

    return onnx.load(str(model.exported.folder / "model.onnx")).graph


def test_static_int8_needs_calibration_data():
    assert reason(OnnxRuntimeInt8(mode="static"), images(calibration=False)) == (
        "needs calibration data"
    )


def test_bfloat16_rounds_or_is_skipped():
    workload = images()
    plan = OpenVinoBfloat16().plan(workload)
    if plan.is_empty:
        assert "bfloat16" in plan.skipped[0].reason
        return
    x = torch.randn(3, 1, 8, 8)
    model = OpenVinoBfloat16().apply(workload, plan)
    assert_close(model(x), workload.model(x), 2.0**-5)  # eight bits, over three layers


@pytest.mark.slow
def test_a_package_compiled_ahead_of_time_computes_the_same():
    workload = images()
    model = made(AotInductor(), workload)
    x = torch.randn(3, 1, 8, 8)
    assert_close(model(x), workload.model(x))


def test_outputs_of_transformers_keep_their_class():
    transformers = require_part("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=30,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    ids = torch.randint(0, 30, (1, 8))
    keywords = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    workload = Workload("bert", transformers.BertModel(config).eval(), (), keywords=keywords)
    model = made(OnnxRuntime(), workload)
    found, expected = model(**keywords), workload.model(**keywords)
    assert type(found) is type(expected)
    assert_close(found.last_hidden_state, expected.last_hidden_state)
    longer = torch.randint(0, 30, (3, 5))
    assert_close(
        model(input_ids=longer, attention_mask=torch.ones_like(longer)).pooler_output,
        workload.model(input_ids=longer).pooler_output,
    )


def test_files_are_read_again_without_the_model(exported, tmp_path):
    workload, model = exported
    model.exported.write(tmp_path)
    again = EngineModel(Exported.read(tmp_path), OnnxRuntime(), 0.0)
    assert again.exported.signature == model.exported.signature
    assert_close(again(*workload.inputs, scale=2.0), model(*workload.inputs, scale=2.0))
    assert Signature.from_dict(model.exported.signature.to_dict()) == model.exported.signature


@pytest.mark.parametrize(
    "transform",
    [OnnxRuntime(), OpenVino(), pytest.param(AotInductor(), marks=pytest.mark.slow)],
    ids=lambda each: each.name,
)
def test_the_program_beside_the_files_needs_no_tinytorch(transform, tmp_path):
    workload = images()
    model = made(transform, workload)
    transform.write_files(model, tmp_path)
    x = workload.inputs[0]
    code = (
        "import sys, runpy, numpy as np; sys.modules['tinytorch'] = None\n"
        "made = runpy.run_path(sys.argv[1])\n"
        "np.save(sys.argv[2], made['run']({'input': np.load(sys.argv[3])})[0])"
    )
    np.save(tmp_path / "x.npy", x.numpy())
    places = [str(tmp_path / name) for name in ("run.py", "y.npy", "x.npy")]
    subprocess.run([sys.executable, "-c", code, *places], check=True)
    assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), workload.model(x))


@pytest.mark.parametrize("damage", [b"", b"changed"])
def test_damaged_files_are_refused(exported, tmp_path, damage):
    exported[1].exported.write(tmp_path)
    (tmp_path / "model.onnx").write_bytes(damage)
    with pytest.raises(CheckpointError, match="damaged"):
        Exported.read(tmp_path)


def test_a_package_for_another_processor_is_refused(exported, tmp_path):
    exported[1].exported.write(tmp_path)
    fields = json.loads((tmp_path / "signature.json").read_text())
    fields["compiled_for"] = ["avx4096"]
    (tmp_path / "signature.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match="avx4096"):
        Exported.read(tmp_path)


def saved_by(version, model, folder):
    """Write the files as another version of the engine would have."""
    model.exported.write(folder)
    fields = json.loads((folder / "signature.json").read_text())
    (folder / "signature.json").write_text(json.dumps(fields | {"made_with": version}))


def test_files_of_another_version_open_if_the_engine_takes_them(exported, tmp_path):
    workload, model = exported
    saved_by("0.1", model, tmp_path)
    assert "onnxruntime 0.1" in Exported.read(tmp_path).other_version
    again = read_model(tmp_path, OnnxRuntime())
    assert_close(again(*workload.inputs, scale=2.0), model(*workload.inputs, scale=2.0))


def test_a_file_that_the_engine_refuses_names_both_versions_and_stays(exported, tmp_path):
    import onnx

    saved_by("99.0", exported[1], tmp_path)
    newer = onnx.load(str(tmp_path / "model.onnx"))
    newer.opset_import[0].version = 9999  # as a later version might write
    onnx.save(newer, str(tmp_path / "model.onnx"))
    fields = json.loads((tmp_path / "signature.json").read_text())
    fields["sha256"] = {"model.onnx": sha256_of(tmp_path / "model.onnx")}
    (tmp_path / "signature.json").write_text(json.dumps(fields))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=r"onnxruntime 99\.0"):
        read_model(tmp_path, OnnxRuntime())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_what_was_compiled_by_another_version_is_refused(exported, tmp_path):
    saved_by("99.0", exported[1], tmp_path)
    fields = json.loads((tmp_path / "signature.json").read_text())
    fields |= {"engine": "aoti", "compiled_for": [], "sha256": {"model.pt2": ""}}
    (tmp_path / "signature.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"99\.0, and this is torch"):
        Exported.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"engine": "onnxruntime"}', "{"])
def test_a_damaged_signature_is_an_error_of_ours(text, exported, tmp_path):
    exported[1].exported.write(tmp_path)
    (tmp_path / "signature.json").write_text(text)
    with pytest.raises(CheckpointError):
        Exported.read(tmp_path)


def test_a_class_of_a_file_is_not_imported(exported, tmp_path):
    _, model = exported
    asked = {"items": {"command": {"value": "true"}}, "class": "subprocess.never.Popen"}
    signature = replace(model.exported.signature, output=asked)
    with pytest.raises(CheckpointError, match=r"subprocess\.never"):
        signature.nested([])


def test_a_dataclass_comes_back_as_itself():
    class Model(nn.Module):
        def forward(self, x):
            return Found(scores=x * 2)

    workload = Workload("found", Model().eval(), (torch.randn(2, 3),))
    found = made(OnnxRuntime(), workload)(*workload.inputs)
    assert type(found) is Found
    assert found.hidden is None
    assert_close(found.scores, workload.inputs[0] * 2)


Pair = namedtuple("Pair", "one other")


class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


class Strange(nn.Module):
    def forward(self, x):
        return {"x": x, "set": {1}}


@pytest.mark.parametrize("model", [Branches(), Strange()], ids=lambda each: type(each).__name__)
def test_what_cannot_be_exported_is_skipped_with_a_reason(model):
    assert reason(OnnxRuntime(), Workload("odd", model.eval(), (torch.randn(2, 3),)))


def test_a_model_in_training_mode_is_skipped():
    workload = images()
    workload.model.train()
    assert "eval()" in reason(OnnxRuntime(), workload)


def test_other_numbers_than_float32_are_skipped():
    model = nn.Linear(4, 4).to(torch.bfloat16).eval()
    workload = Workload("half", model, (torch.randn(2, 4, dtype=torch.bfloat16),))
    assert "float32" in reason(OnnxRuntime(), workload)


@pytest.mark.parametrize("name", ["onnxruntime", "onnxscript"])
def test_a_missing_package_names_the_extra(monkeypatch, name):
    hide_package(monkeypatch, name)
    assert ".[engines]" in reason(OnnxRuntime(), images())
    assert OnnxRuntime().missing_extras == ("engines",)


def test_modes_are_checked():
    with pytest.raises(SettingError, match="dynamic"):
        OnnxRuntimeInt8(mode="faster")
