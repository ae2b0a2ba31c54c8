"""Matrix products."""

from __future__ import annotations

from tinytorch.core.backends import Array
from tinytorch.core.dispatch import run
from tinytorch.core.operations.operation import Gradients, Operation, sum_to_shape


class Matmul(Operation):
    """a @ b with NumPy's rules: vectors, matrices, and stacks of matrices that broadcast."""

    def forward(self, a: Array, b: Array) -> Array:
        self.saved = a, b
        return run("matmul", a, b)

    def backward(self, grad: Array) -> Gradients:
        a, b = self.saved
        # treat vectors as one-row and one-column matrices
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        if a.ndim == 1:
            grad = grad[..., None, :] if b.ndim > 1 else grad[..., None]
        if b.ndim == 1:
            grad = grad[..., None]
        grad_a = grad_b = None
        if self.wants(0):
            grad_a = run("matmul", grad, columns.swapaxes(-1, -2))
            grad_a = sum_to_shape(grad_a, rows.shape).reshape(a.shape)
        if self.wants(1):
            grad_b = run("matmul", rows.swapaxes(-1, -2), grad)
            grad_b = sum_to_shape(grad_b, columns.shape).reshape(b.shape)
        return grad_a, grad_b


class Linear(Operation):
    """x @ weight + bias, where x (..., in) is seen as one tall matrix, and then an activation."""

    def __init__(self, activation: str | None = None) -> None:
        self.activation = activation

    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        given = (x, weight) if bias is None else (x, weight, bias)
        if self.activation is None or not self.tracked:
            self.saved = x, weight, None, None
            settings = {} if self.activation is None else {"activation": self.activation}
            return run("linear", *given, **settings)
        product = run("linear", *given)  # which the derivative of the activation needs
        kind, options = ACTIVATION_KINDS[self.activation]
        output = run(kind, product, **options)
        self.saved = x, weight, product, output
        return output

    def backward(self, grad: Array) -> Gradients:
        x, weight, product, output = self.saved
        if self.activation is not None:
            kind, options = ACTIVATION_KINDS[self.activation]
            known = product if kind == "gelu" else output
            grad = run(f"{kind}_backward", grad, known, **options)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if self.wants(0):
            grad_x = run("matmul", rows, weight.T).reshape(x.shape)
        if self.wants(1):
            grad_weight = run("matmul", x.reshape(-1, x.shape[-1]).T, rows)
        if self.wants(2):
            grad_bias = run("sum", rows, axis=0)
        return (grad_x, grad_weight, grad_bias)[: len(self.inputs)]


# An activation that may follow a product -> its kernel and that kernel's settings.
ACTIVATION_KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "relu": ("relu", {}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "gelu": ("gelu", {"approximate": "none"}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
}


class Attention(Operation):
    """softmax(query key^T scale + bias) value, with a causal mask on request."""

    def __init__(self, bias: Array | None, scale: float, causal: bool) -> None:
        self.bias = bias
        self.scale = scale
        self.causal = causal

    def forward(self, query: Array, key: Array, value: Array) -> Array:
        mix, weights = run(
            "attention",
            query,
            key,
            value,
            self.bias,
            scale=self.scale,
            causal=self.causal,
            keep_weights=self.tracked,
        )
        self.saved = query, key, value, weights
        return mix

    def backward(self, grad: Array) -> Gradients:
        gradients: Gradients = run(
            "attention_backward", grad, *self.saved, scale=self.scale, causal=self.causal
        )
        pairs = zip(gradients, self.inputs, strict=True)
        return tuple(sum_to_shape(slope, tensor.shape) for slope, tensor in pairs)  # type: ignore[arg-type]
