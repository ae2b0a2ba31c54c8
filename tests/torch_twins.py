"""A layer of ours beside its PyTorch twin: the same weights, compared forward and backward."""

from collections.abc import Callable
from typing import Any

import numpy as np
from parts import require_part

from tinytorch.core.tensor import Tensor

Arrays = dict[str, np.ndarray[Any, Any]]

# Results are sums of at most a few hundred products of order one. Each is rounded to half a unit in
# the last place (6e-8, or 1.1e-16), and the two libraries add up in different orders, so that
# errors of about the square root of the count times the unit remain. Both bounds leave a factor
# of ten above that.
TOLERANCES = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}


def randomise(model: Any, rng: np.random.Generator, scale: float = 0.5) -> None:
    """Draw every parameter, so that ones and zeros of an initialisation hide nothing."""
    for parameter in model.parameters():
        draw = scale * rng.standard_normal(parameter.shape)
        parameter.data = draw.astype(parameter.dtype)


def assert_same(ours: Any, theirs: Any, factor: float = 1.0) -> None:
    """Compare two arrays with an error relative to the largest element (at least 1)."""
    computed, wanted = _array(ours), _array(theirs)
    assert computed.shape == wanted.shape
    assert computed.dtype == wanted.dtype
    bound = factor * TOLERANCES[wanted.dtype] * max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=bound)


def check_twins(
    ours: Any,
    theirs: Any,
    x: np.ndarray[Any, Any],
    rng: np.random.Generator,
    *,
    translate: Callable[[Arrays], Arrays] = dict,
    our_call: Callable[..., Any] | None = None,
    their_call: Callable[..., Any] | None = None,
    factor: float = 1.0,
) -> None:
    """Compare outputs, input gradients and parameter gradients, in the dtype of `x`.

    `translate` turns arrays by our names into arrays by the names of PyTorch. It is linear, so that
    it serves for weights and for gradients.
    """
    torch = require_part("torch")
    ours.astype(x.dtype)
    theirs.to(torch.from_numpy(x[:0]).dtype)
    copy_weights(ours, theirs, translate)
    x_ours = Tensor(x.copy(), requires_grad=True)
    x_theirs = torch.tensor(x, requires_grad=True)
    y_ours = (our_call or ours)(x_ours)
    y_theirs = (their_call or theirs)(x_theirs)
    assert_same(y_ours, y_theirs, factor)
    slope = rng.standard_normal(y_ours.shape).astype(x.dtype)
    y_ours.backward(slope)
    y_theirs.backward(torch.tensor(slope))
    assert_same(x_ours.grad, x_theirs.grad, factor)
    check_gradients_of_parameters(ours, theirs, translate, factor)


def copy_weights(ours: Any, theirs: Any, translate: Callable[[Arrays], Arrays] = dict) -> None:
    """Write our parameters into the parameters of the twin."""
    torch = require_part("torch")
    named = {name: parameter.data for name, parameter in ours.named_parameters()}
    translated = translate(named)
    parameters = dict(theirs.named_parameters())
    assert translated.keys() == parameters.keys()
    for name, parameter in parameters.items():
        parameter.data = torch.tensor(np.ascontiguousarray(translated[name]))


def check_gradients_of_parameters(
    ours: Any, theirs: Any, translate: Callable[[Arrays], Arrays] = dict, factor: float = 1.0
) -> None:
    """Compare the gradients of all parameters, of which none may be missing."""
    named = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert [name for name, gradient in named.items() if gradient is None] == []
    gradients = translate(named)  # type: ignore[arg-type]
    for name, parameter in theirs.named_parameters():
        assert_same(gradients[name], parameter.grad, factor)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, Tensor):
        return value.data
    return value if isinstance(value, np.ndarray) else value.detach().numpy()
