import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, ShapeError
from tinytorch.models.adapter import adapter_for, held_by, owner_of, path_outside
from tinytorch.models.core import CoreAdapter

X = Tensor(np.ones((2, 3), np.float32))


class Failing(Module):
    def __init__(self, error):
        self.error = error

    def forward(self, x):
        raise self.error


class Holder:
    """A plain object with layers in every kind of place."""

    def __init__(self):
        self.first = Linear(3, 3, rng=0)
        self.many = [Linear(3, 3, rng=0), (ReLU(),)]
        self.named = {"head": Linear(3, 3, rng=0), 7: ReLU()}
        self.inner = Slotted()
        self.width = 3
        self.itself = self
        self.kind = Linear

    def forward(self, x):
        return self.first(x)


class Slotted:
    __slots__ = ("__dict__", "net", "unset")

    def __init__(self):
        self.net = ReLU()

    def forward(self, x):
        return self.net(x)


class OneSlot:
    __slots__ = "net"

    def __init__(self):
        self.net = ReLU()

    def forward(self, x):
        return self.net(x)


# ---------------------------------------------------------------- finding one


@pytest.mark.parametrize(
    "model", [Sequential(ReLU()), Holder(), OneSlot(), ReLU().forward, lambda x: x, len, object()]
)
def test_what_holds_no_module_of_pytorch_is_watched_as_our_own(model):
    assert type(adapter_for(model)) is CoreAdapter


def test_finding_an_adapter_and_recording_do_not_import_pytorch():
    code = """
import sys
from tinytorch.models.adapter import adapter_for
from tinytorch.core.layers import ReLU
from tinytorch.core.tensor import Tensor
model = ReLU()
adapter = adapter_for(model)
adapter.record(model, lambda: model(Tensor([1.0])), device="cpu")
print(adapter.name, adapter_for(lambda x: x).name, "torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["core", "core", "False"]


# ---------------------------------------------------------------- models that are no modules


def test_modules_are_found_wherever_a_plain_object_keeps_them():
    found = [path for path, _ in held_by(Holder(), Module)]
    assert found == ["first", "many.0", "many.1.0", "named.head", "named.7", "inner.net"]


def test_what_a_function_uses_belongs_to_it():
    layer = Linear(3, 3, rng=0)
    layers = [ReLU()]

    def model(x):
        return layers[0](layer(x))

    assert {path: type(found) for path, found in held_by(model, Module)} == {
        "layer": Linear,
        "layers.0": ReLU,
    }


GLOBAL_LAYER = ReLU()


def test_also_what_a_function_takes_from_its_file():
    assert dict(held_by(lambda x: GLOBAL_LAYER(x), Module)) == {"GLOBAL_LAYER": GLOBAL_LAYER}


@pytest.mark.parametrize("nothing", [object(), 3, len, None, "text", int])
def test_other_things_hold_nothing(nothing):
    assert list(held_by(nothing, Module)) == []


def test_a_search_stops_at_what_it_finds():
    outer = Holder()
    outer.named = Sequential(Linear(3, 3, rng=0))
    tensors = [
        path for path, found in held_by(outer, (Tensor, Module)) if isinstance(found, Tensor)
    ]
    assert tensors == []


def test_behind_a_method_or_a_partial_call_stands_its_object():
    net = Sequential(ReLU())
    assert owner_of(net.forward) is net
    assert owner_of(partial(net.forward, X)) is net
    assert owner_of(partial(partial(net), X)) is net
    assert owner_of(net) is net
    assert owner_of(len) is len


@pytest.mark.parametrize(
    ("model", "outside"),
    [
        (Sequential(ReLU()), None),
        (Holder(), None),
        (OneSlot(), ""),
        (ReLU().forward, ""),
        (lambda x: x, ""),
    ],
)
def test_only_around_a_model_that_can_be_watched_there_is_an_outside(model, outside):
    assert path_outside(model) == outside


# ---------------------------------------------------------------- errors


def run_naming(model, x=X):
    with CoreAdapter().naming_failures(model):
        return model.forward(x) if not callable(model) else model(x)


@pytest.mark.parametrize("error", [KeyError("k"), ZeroDivisionError("z"), RuntimeError("r")])
def test_an_exception_in_a_layer_becomes_one_that_names_the_layer(error):
    model = Sequential(*[ReLU() for _ in range(7)], Failing(error), ReLU())
    with pytest.raises(ModelError) as caught:
        run_naming(model)
    assert str(caught.value) == (
        f"layer 'layers.7' (Failing) raised {type(error).__name__}: {error}"
    )
    assert caught.value.__cause__ is error


def test_an_exception_of_the_model_itself_names_the_model():
    with pytest.raises(ModelError, match=r"^the model raised KeyError: 'own'$"):
        run_naming(Failing(KeyError("own")))


def test_an_exception_that_the_model_has_caught_is_not_blamed():
    class Careful(Module):
        def __init__(self):
            self.risky = Failing(KeyError("caught"))
            self.layers = [ReLU()]

        def forward(self, x):
            try:
                self.risky(x)
            except KeyError:
                x = self.layers[0](x)
            raise ZeroDivisionError("own")

    with pytest.raises(ModelError, match=r"^the model raised ZeroDivisionError: own$"):
        run_naming(Careful())


def test_an_exception_that_a_layer_translates_is_its_own():
    class Translating(Module):
        def __init__(self):
            self.inner = Failing(KeyError("inner"))

        def forward(self, x):
            try:
                return self.inner(x)
            except KeyError as error:
                raise ValueError("outer") from error

    with pytest.raises(ModelError, match=r"layer 'layers.0' \(Translating\) raised ValueError"):
        run_naming(Sequential(Translating()))


def test_our_own_errors_pass_with_the_path_that_they_have():
    with pytest.raises(ShapeError, match=r"^layers\.1: .*needs input \(\.\.\., 5\)"):
        run_naming(Sequential(Linear(3, 4, rng=0), Linear(5, 4, rng=0)))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_the_program_is_not_named(stop):
    with pytest.raises(stop):
        run_naming(Sequential(Failing(stop())))


def test_a_failure_leaves_no_trace_in_the_model():
    model = Sequential(ReLU(), Failing(KeyError("k")))
    with pytest.raises(ModelError):
        run_naming(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_without_a_failure_the_result_passes():
    assert run_naming(Sequential(ReLU())).shape == X.shape
    assert run_naming(OneSlot()).shape == X.shape
