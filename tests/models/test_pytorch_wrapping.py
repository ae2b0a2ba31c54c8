import copy
import pickle
from contextlib import contextmanager

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.models.pytorch_tensors import PreparedModel, WrappedModel, around_calls, innermost


class Doubled(WrappedModel):
    """Calls the model and doubles what it gives."""

    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Linear):
    """A layer with an attribute, a property and a method of its own."""

    colour = "red"

    @property
    def shape(self):
        return tuple(self.weight.shape)

    def describe(self):
        return f"{self.colour} {self.shape}"


@pytest.fixture
def model():
    return Named(3, 2).eval()


def test_it_is_called_in_its_own_way(model):
    x = torch.ones(1, 3)
    assert torch.equal(Doubled(model)(x), 2 * model(x))
    assert torch.equal(WrappedModel(model)(x), model(x))


def test_every_attribute_is_that_of_the_model(model):
    wrapped = Doubled(Doubled(model))
    assert wrapped.colour == "red"
    assert wrapped.shape == (2, 3)
    assert wrapped.describe() == "red (2, 3)"
    assert wrapped.weight is model.weight


def test_who_goes_past_the_wrappers_enters_their_blocks(model):
    entered = []

    class Entered(WrappedModel):
        @contextmanager
        def around_call(self):
            entered.append("in")
            yield
            entered.append("out")

    with around_calls(Doubled(Entered(Entered(model)))):
        assert entered == ["in", "in"]
    assert entered == ["in", "in", "out", "out"]


def test_what_nobody_has_is_an_attribute_error(model):
    with pytest.raises(AttributeError, match="no_such_name"):
        Doubled(model).no_such_name  # noqa: B018
    assert not hasattr(Doubled(model), "generate")


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_is_that_of_the_model(model, is_training):
    model.train(is_training)
    wrapped = Doubled(model)
    assert wrapped.training is is_training
    wrapped.train(not is_training)
    assert model.training is not is_training


def test_parameters_are_counted_once(model):
    wrapped = Doubled(model)
    assert [id(each) for each in wrapped.parameters()] == [id(each) for each in model.parameters()]
    assert list(wrapped.state_dict()) == ["model.weight", "model.bias"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_it_can_be_copied(copied):
    wrapped = WrappedModel(nn.Linear(3, 2))
    twin = copied(wrapped)
    assert twin.model is not wrapped.model
    x = torch.ones(1, 3)
    assert torch.equal(twin(x), wrapped(x))


def test_the_innermost_is_inside_of_all_wrappers(model):
    assert innermost(Doubled(WrappedModel(model))) is model
    assert innermost(model) is model
    assert innermost("text") == "text"


class Counting(PreparedModel):
    """Counts how often it was set up, and how often it had to forget."""

    not_copied = ("made",)

    def __init__(self, model):
        super().__init__(model)
        self.forgotten = 0
        self._set_up()

    def _set_up(self):
        self.made = object()

    def _forget(self):
        self.forgotten += 1


def test_a_copy_of_a_prepared_model_has_its_own_preparation():
    model = Counting(nn.Linear(2, 2))
    twin = copy.deepcopy(model)
    assert twin.made is not model.made
    assert torch.equal(twin.model.weight, model.model.weight)


def test_what_was_prepared_is_forgotten_when_weights_are_converted():
    assert Counting(nn.Linear(2, 2)).double().forgotten == 1
