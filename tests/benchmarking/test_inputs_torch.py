import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor

torch = require_part("torch")

from tinytorch.benchmarking.examples import torch_input


def test_floats_get_the_dtype_of_the_model():
    half = [torch.nn.Linear(2, 2).to(torch.bfloat16)]
    for value in (np.ones((1, 2)), Tensor([[1.0, 1.0]])):
        assert torch_input(value, half).dtype == torch.bfloat16
    assert torch_input(np.ones(3), [torch.nn.ReLU()]).dtype == torch.float32


def test_tokens_stay_whole_numbers():
    found = torch_input(np.array([1, 2]), [torch.nn.Embedding(4, 2)])
    assert (found.dtype, found.tolist()) == (torch.int64, [1, 2])


def test_inputs_go_where_the_model_is():
    assert torch_input(np.ones(2), [torch.nn.Linear(2, 2, device="meta")]).device.type == "meta"


def test_what_is_a_tensor_already_stays_as_it_is():
    tensor = torch.ones(2, dtype=torch.float64)
    assert torch_input(tensor, [torch.nn.Linear(2, 2)]) is tensor
    assert torch_input("text", []) == "text"


@pytest.mark.parametrize("writeable", [True, False])
def test_memory_is_not_shared(writeable):
    array = np.ones(2, dtype=np.float32)
    array.flags.writeable = writeable
    torch_input(array, []).zero_()
    assert array.tolist() == [1, 1]
