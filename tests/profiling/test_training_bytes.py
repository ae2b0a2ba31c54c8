import copy
import pickle

import numpy as np
import pytest
from classic_models import KINDS, PARAMETERS, make_model
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.layers import Linear
from tinytorch.core.optimizers import SGD, Adam, AdamW
from tinytorch.errors import SettingError
from tinytorch.profiling.profiler import TrainingMemory, training_memory


def test_the_golden_number_is_two_gigabytes_before_activations():
    needed = training_memory(125_000_000, optimizer="adam")
    assert needed == 2e9
    assert int(needed) == 2_000_000_000
    assert needed.parts == {
        "weights": 500_000_000,
        "gradients": 500_000_000,
        "optimizer_state": 1_000_000_000,
        "activations": 0,
    }


def test_activations_come_on_top():
    assert training_memory(1000, activations=24) == 16_024
    assert training_memory(1000, activations=24).activations == 24


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"), [("sgd", 8), ("momentum", 12), ("adam", 16), ("AdamW", 16)]
)
def test_each_optimizer_keeps_its_own_state(optimizer, bytes_each):
    assert training_memory(10, optimizer=optimizer) == 10 * bytes_each


@pytest.mark.parametrize(
    ("dtype", "size"), [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2)]
)
def test_the_dtype_decides_how_large_a_number_is(dtype, size):
    assert training_memory(10, "sgd", dtype) == 2 * 10 * size


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sgd", lambda p: SGD(p, lr=0.1)),
        ("momentum", lambda p: SGD(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: Adam(p)),
        ("adamw", lambda p: AdamW(p)),
    ],
)
def test_the_state_is_what_our_optimizers_really_hold(name, make):
    layer = Linear(8, 4)
    optimizer = make(layer.parameters())
    layer(Tensor(np.ones((2, 8), np.float32))).sum().backward()
    optimizer.step()
    held = sum(array.nbytes for slots in optimizer.slots for array in slots.values() if array.ndim)
    assert held == training_memory(layer, name).optimizer_state


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_the_state_is_what_torch_s_optimizers_really_hold(name):
    torch = require_part("torch")
    layer = torch.nn.Linear(8, 4)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    held = sum(
        value.nbytes
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step" and value is not None
    )
    assert held == training_memory(layer, name.lower()).optimizer_state


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_counted(kind):
    assert training_memory(make_model(kind)) == 16 * PARAMETERS


def test_round_numbers_may_be_written_with_an_exponent():
    assert training_memory(125e6, activations=1e9) == 3e9


def test_it_survives_being_copied_and_stored():
    needed = training_memory(10, activations=5)
    for other in (copy.deepcopy(needed), pickle.loads(pickle.dumps(needed))):
        assert (other, other.parts) == (needed, needed.parts)


def test_it_shows_its_parts_and_formats_as_a_number():
    needed = TrainingMemory(40, 40, 80)
    assert "optimizer_state=80" in repr(needed)
    assert f"{needed:,}" == "160"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, "lion"), "optimizer='lion'; there are sgd, momentum, adam, adamw"),
        ((10, "adam", "int3"), "dtype='int3'; there are float64"),
        ((-1,), "parameters=-1; it must be at least 0"),
        ((1.5,), "parameters=1.5; it must be a whole number"),
        (("many",), "parameters='many'; give a whole number, or a model"),
        ((10, "adam", "float32", -1), "activations=-1"),
        ((float("nan"),), "parameters=nan"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        training_memory(*arguments)
