"""Steps of core models, and recording them."""

from tinytorch.core.autograd import no_grad
from tinytorch.models.core import CoreAdapter

ADAPTER = CoreAdapter()


def record(model, step, *inputs, optimizer=None):
    return ADAPTER.record(model, step, device="cpu", inputs=inputs, optimizer=optimizer)


def forward(model, *inputs):
    def step():
        with no_grad():
            return model(*inputs)

    return step


def training(model, optimizer, *inputs):
    def step():
        ADAPTER.drop_gradients(model)
        output = model(*inputs)
        loss = (output * output).mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    return step
