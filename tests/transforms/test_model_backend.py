import copy
import pickle

import numpy as np
import pytest

from tinytorch import Tensor, use_backend
from tinytorch.core.checkpointing import checkpoint_layers
from tinytorch.core.dispatch import recording
from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.transformers import GPT
from tinytorch.errors import BackendError, SettingError
from tinytorch.transforms.kernel_choice import (
    model_backend,
    set_model_backend,
    without_model_backends,
)

OWN = NUMPY.extended("own", {})
X = Tensor(np.ones((2, 3), np.float32))


def model():
    return Sequential(Linear(3, 4, rng=0), ReLU(), Linear(4, 2, rng=1))


def backends_of(run):
    """Give the backends that compute, by the path of the layer."""
    seen = {}
    with recording(lambda call: seen.setdefault(call.path, set()).add(call.backend)):
        run()
    return seen


def test_a_model_runs_on_its_backend_whatever_is_around():
    net = model()
    set_model_backend(net, OWN)
    with use_backend("reference"):
        seen = backends_of(lambda: net(X))
    assert seen == {f"layers.{index}": {"own"} for index in range(3)}


def test_without_one_it_runs_on_that_of_the_caller():
    net = model()
    set_model_backend(net, OWN)
    set_model_backend(net, None)
    with use_backend("reference"):
        assert backends_of(lambda: net(X))["layers.0"] == {"reference"}
    assert "_execution" not in vars(net)


def test_a_layer_with_its_own_keeps_it():
    net = model()
    set_model_backend(net, OWN)
    set_model_backend(net.layers[1], "reference")
    seen = backends_of(lambda: net(X))
    assert seen == {"layers.0": {"own"}, "layers.1": {"reference"}, "layers.2": {"own"}}


def test_the_backward_pass_runs_on_it_too():
    net = model()
    set_model_backend(net, OWN)
    with use_backend("reference"):
        loss = net(X).sum()
        seen = backends_of(loss.backward)
    assert seen == {None: {"own", "reference"}}  # the sum is not the model's


def test_other_entry_points_run_on_it():
    gpt = GPT(7, 8, 1, 2, 8, rng=0)
    set_model_backend(gpt, OWN)
    seen = backends_of(lambda: gpt.generate([1, 2], 2))
    assert set.union(*seen.values()) == {"own"}


def test_copies_keep_it_and_files_do_not():
    net = model()
    set_model_backend(net, OWN)
    for twin in (copy.deepcopy(net), copy.copy(net)):
        assert model_backend(twin) is OWN
    loaded = pickle.loads(pickle.dumps(net))
    assert model_backend(loaded) is None
    np.testing.assert_array_equal(loaded(X).data, net(X).data)
    assert net.state_dict().keys() == model().state_dict().keys()


def test_an_error_inside_puts_the_backend_back():
    net = model()
    set_model_backend(net, OWN)
    with use_backend("reference") as outer:
        with pytest.raises(ValueError, match=r"layers\.0"):
            net(Tensor(np.ones((2, 5), np.float32)))
        assert backends_of(lambda: X + X) == {None: {outer.name}}


def test_hooks_run_as_before():
    net, calls = model(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    set_model_backend(net, OWN)
    net(X)
    assert calls == [1]


def test_it_goes_together_with_checkpoints():
    gpt = GPT(7, 8, 2, 2, 8, rng=0)
    checkpoint_layers(gpt)
    for block in gpt.blocks:
        set_model_backend(block, OWN)
    seen = backends_of(lambda: gpt([[1, 2, 3]]).sum().backward())
    assert seen["blocks.1.norm1"] == {"own"}
    set_model_backend(gpt.blocks[0], None)
    assert gpt.blocks[0]._execution.around_forward is not None


def test_names_and_objects_that_give_a_backend_are_accepted():
    class Giving:
        def as_backend(self):
            return OWN

    net = model()
    set_model_backend(net, "reference")
    assert model_backend(net) is REFERENCE
    set_model_backend(net, Giving())
    assert model_backend(net) is OWN
    assert model_backend(net.layers[0]) is None


def test_what_cannot_be_is_explained():
    with pytest.raises(BackendError, match="unknown backend 'nothing'"):
        set_model_backend(model(), "nothing")
    with pytest.raises(SettingError, match=r"a function cannot have its own backend.*use_backend"):
        set_model_backend(lambda x: x, "numpy")


def test_backends_can_be_lifted_for_a_while():
    net = model()
    set_model_backend(net.layers[0], OWN)
    with without_model_backends(net):
        assert model_backend(net.layers[0]) is None
    assert model_backend(net.layers[0]) is OWN
