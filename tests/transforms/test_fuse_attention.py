import json

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.plan import Transform


def test_it_is_a_transform():
    assert isinstance(FuseAttention(), Transform)


def test_models_of_core_are_left_alone_with_the_reason():
    model = GPT(11, 8, 1, 2, max_seq_len=6)
    case = Workload("own", model, (Tensor(np.array([[1, 2, 3]])),))
    plan = FuseAttention().plan(case)
    assert plan.is_empty
    assert "FuseAttention is for models of pytorch" in plan.skipped[0].reason
    copy = FuseAttention().apply(case, plan)
    assert copy is not model
    assert copy.state_dict().keys() == model.state_dict().keys()


def test_what_is_no_workload_is_refused():
    with pytest.raises(SettingError, match="made for a Workload"):
        FuseAttention().plan("gpt")


def test_a_plan_of_another_transform_is_refused():
    model = GPT(11, 8, 1, 2, max_seq_len=6)
    case = Workload("own", model, (Tensor(np.array([[1, 2, 3]])),))
    with pytest.raises(SettingError, match="made by FuseLayers"):
        FuseAttention().apply(case, FuseLayers().plan(case))


def test_plans_of_pytorch_models_are_ready_for_json():
    torch = require_part("torch")
    from attention_models_torch import NanoGPT

    case = Workload("nano", NanoGPT().eval(), (torch.arange(6)[None],))
    plan = FuseAttention().plan(case)
    read = json.loads(json.dumps(plan.to_dict()))
    assert [step["layer"] for step in read["steps"]] == ["h.0.attn", "h.1.attn"]
    assert read["speedup"] is None
    assert "compare() measures it" in read["not_predicted"]["speedup"]
