import numpy as np
import pytest
from small_models import workload

from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.transforms.quantize.classic import INT8Quantizer, workload_of


def test_calibrated_models_are_static_and_others_dynamic():
    work = workload("mlp")
    batches = [x for (x,) in work.calibration]
    static = INT8Quantizer().calibrate(batches).quantize(work.model)
    dynamic = INT8Quantizer().quantize(work.model)
    weights = INT8Quantizer("weight_only").calibrate(batches).quantize(work.model)
    modes = [model.layers[0].mode for model in (static, dynamic, weights)]
    assert modes == ["static", "dynamic", "weight_only"]


def test_the_plan_and_the_statistics_can_be_looked_at():
    work = workload("mlp")
    quantizer = INT8Quantizer(ranges="minmax", keep=("layers.4",))
    quantizer.calibrate([x for (x,) in work.calibration])
    quantizer.quantize(work.model)
    assert quantizer.plan.layers == ("layers.0", "layers.2")
    settings = quantizer.plan.steps[0].settings
    assert settings["input_range"] == (settings["seen"]["low"], settings["seen"]["high"])


def test_empty_calibration_data_says_so():
    with pytest.raises(SettingError, match="the calibration data is empty"):
        INT8Quantizer().calibrate([])


def test_wrong_settings_are_told_at_once():
    with pytest.raises(SettingError, match="unknown mode"):
        INT8Quantizer("fast")
    with pytest.raises(TypeError, match="colour"):
        INT8Quantizer(colour="red")


def test_the_first_batch_is_the_input_of_the_workload():
    x = Tensor(np.ones((2, 64), np.float32))
    work = workload_of(workload("mlp").model, ((x,), (x,)))
    assert work.inputs == (x,)
    assert len(work.calibration) == 2


def test_eight_bits_are_eight_bits():
    with pytest.raises(SettingError, match="INT8 has eight bits"):
        INT8Quantizer("weight_only", bits=4)
