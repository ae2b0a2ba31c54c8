"""A PyTorch model is asked with arrays and answers with arrays."""

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")


from tinytorch.competition.sandbox.building import callables_of
from tinytorch.competition.sandbox.building_torch import forward_of

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def test_outputs_are_those_of_the_model() -> None:
    model = torch.nn.Linear(4, 3)
    expected = model(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_array_equal(forward_of(model)(X), expected)


def test_dropout_is_off() -> None:
    forward = forward_of(torch.nn.Dropout(0.5))
    np.testing.assert_array_equal(forward(X), X)


def test_bfloat16_becomes_float32() -> None:
    class Narrow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.bfloat16()

    output = forward_of(Narrow())(X)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, X, rtol=2**-8)


def test_text_is_written_letter_by_letter() -> None:
    class Next(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot((ids + 1) % 9, 9).float()

    _, generate = callables_of(Next(), use_cache=False)
    assert list(generate(np.array([3]), 3)) == [4, 5, 6]


def test_a_tensor_is_no_model() -> None:
    with pytest.raises(Exception, match="what was made is a Tensor"):
        callables_of(torch.zeros(1), use_cache=False)
