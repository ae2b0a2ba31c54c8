import pytest
from classic_models import INPUTS, KINDS, MACS_PER_SAMPLE, leaving_no_trace, make_input, make_model
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.layers import Linear, ReLU
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Parameter
from tinytorch.profiling.flops import example_inputs, flops_per_sample


def found(model, *shape):
    return flops_per_sample(model, example_inputs(model, shape))


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_costs_the_same_in_every_batch(kind, batch):
    model, x = make_model(kind), make_input(kind, batch, INPUTS)
    with leaving_no_trace(model):
        flops = flops_per_sample(model, (x,))
    assert (flops.per_sample, flops.batch_size) == (2 * MACS_PER_SAMPLE, batch)
    assert flops.per_call == batch * flops.per_sample


@pytest.mark.parametrize("shape", [(1, 512), (64, 512), (512,)])
def test_the_golden_layer(shape):
    assert found(Linear(512, 512), *shape).per_sample == 524_288


def test_tokens_of_a_sample_belong_to_it():
    assert found(Linear(8, 4), 3, 10, 8).per_sample == 2 * 10 * 8 * 4


def test_one_image_without_a_batch_is_one_sample():
    layer = Conv2d(3, 8, 3)
    single, batched = found(layer, 3, 9, 9), found(layer, 5, 3, 9, 9)
    assert single.per_sample == batched.per_sample == 2 * 7 * 7 * 8 * 3 * 9
    assert (single.batch_size, batched.batch_size) == (None, 5)


def test_one_sequence_without_a_batch_is_one_sample():
    layer = MultiHeadAttention(8, 2)
    single, batched = found(layer, 6, 8), found(layer, 3, 6, 8)
    assert single.per_sample == batched.per_sample
    assert (single.batch_size, batched.batch_size) == (None, 3)


@pytest.mark.parametrize("batch", [2, 3, 4, 5])
def test_layers_that_refuse_a_batch_of_one_are_counted(batch):
    nn = require_part("torch").nn
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).train()
    assert found(model, batch, 8).per_sample == 2 * 8 * 4


def test_work_that_does_not_depend_on_the_batch_counts_for_the_sample():
    class Squared:
        def __init__(self):
            self.weight = Parameter([[1.0, 2.0], [3.0, 4.0]])

        def forward(self, x):
            return x @ (self.weight @ self.weight)

    fixed, each = 2 * 2**3, 2 * 2 * 2
    flops = found(Squared(), 6, 2)
    assert (flops.per_sample, flops.per_call) == (fixed + each, fixed + 6 * each)
    assert flops.per_sample == found(Squared(), 1, 2).per_sample


def test_a_model_without_products_costs_nothing():
    assert found(ReLU(), 4, 5).per_sample == 0


def test_the_backward_pass_can_be_included():
    model = make_model("core")
    x = make_input("core", 4, INPUTS)
    forward, both = (flops_per_sample(model, (x,), backward=b) for b in (False, True))
    first_layer = 2 * INPUTS * 16
    assert both.per_sample == 3 * forward.per_sample - first_layer  # no gradient of the input


def test_several_inputs_are_resized_together():
    class Product:
        def forward(self, a, b):
            return a @ b

    a, b = Tensor([[[1.0, 2.0]]] * 4), Tensor([[[1.0], [2.0]]] * 4)
    assert flops_per_sample(Product(), (a, b)).per_sample == 2 * 2
