import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.embeddings import Embedding
from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError
from tinytorch.profiling.flops import (
    as_inputs,
    check_model,
    example_inputs,
    shape_of,
)


def test_a_shape_becomes_one_input_of_the_model_s_framework():
    torch = require_part("torch")
    (ours,) = example_inputs(Linear(3, 2), (4, 3))
    (theirs,) = example_inputs(torch.nn.Linear(3, 2), (4, 3))
    assert (type(ours), ours.shape) == (Tensor, (4, 3))
    assert (type(theirs), tuple(theirs.shape)) == (torch.Tensor, (4, 3))


def test_several_shapes_become_several_inputs():
    inputs = example_inputs(Linear(3, 2), [(4, 3), (5,)])
    assert [shape_of(x) for x in inputs] == [(4, 3), (5,)]


def test_embeddings_get_tokens():
    (tokens,) = example_inputs(Embedding(5, 3), (2, 7))
    assert tokens.data.dtype.kind == "i"
    assert set(tokens.data.ravel().tolist()) <= set(range(5))


def test_lengths_may_be_of_numpy():
    (x,) = example_inputs(Linear(3, 2), np.array([4, 3]))
    assert shape_of(x) == (4, 3)


@pytest.mark.parametrize("shape", [5, (0, 3), (2.5, 3), (-1, 3), (True, 3), "ab"])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(SettingError, match="input_shape="):
        example_inputs(Linear(3, 2), shape)


def test_a_tuple_is_several_arguments():
    assert as_inputs((1, 2)) == (1, 2)
    assert as_inputs([1, 2]) == ([1, 2],)


def test_what_has_no_shape_has_an_empty_one():
    assert shape_of("text") == ()


@pytest.mark.parametrize("model", [Linear(3, 2), len])
def test_what_can_be_called_is_a_model(model):
    assert check_model(model) is None


@pytest.mark.parametrize("model", [None, 3, Linear])
def test_other_things_are_no_model(model):
    with pytest.raises(SettingError, match="is no model"):
        check_model(model)
