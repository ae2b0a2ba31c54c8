import copy
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.core.layers import Sequential as CoreSequential
from tinytorch.errors import BackendError, GraphError, ModelError, SettingError
from tinytorch.measure.timing import WALL, DeviceClock
from tinytorch.models.adapter import adapter_for, stamping_layers
from tinytorch.models.pytorch import TorchAdapter, tensors_in

ADAPTER = TorchAdapter()


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Noisy(nn.Module):
    """Everything that a call may change: statistics, random state, gradients, weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.generator = torch.Generator().manual_seed(7)
        self.register_buffer("expanded", torch.zeros(1).expand(5))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        noise = torch.rand(4, 1, 1, generator=self.generator)
        return self.drop(self.norm(self.conv(x))) * noise


def trained_once():
    model, x = Noisy(), normal(2, 2, 6, 6)
    model(x).square().sum().backward()
    model.drop.eval()
    return model, x


def facts(model):
    """Give all that watching must not change."""
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "dicts": [sorted(vars(each)) for each in model.modules()],
        "training": [each.training for each in model.modules()],
        "hooks": [
            len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()
        ],
        "tensors": [(id(each), each.data_ptr(), each.requires_grad) for each in tensors],
        "gradients": [id(each.grad) for each in model.parameters()],
        "values": [each.tolist() for each in tensors],
        "gradient values": [each.grad.tolist() for each in model.parameters()],
        "random": torch.get_rng_state().tolist(),
        "generator": model.generator.get_state().tolist(),
        "modes": torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        "grad mode": torch.is_grad_enabled(),
    }


# ---------------------------------------------------------------- nothing is disturbed


def train(model, optimizer, x):
    ADAPTER.drop_gradients(model)
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss


def test_a_preserved_training_step_leaves_the_model_as_it_was():
    model, x = trained_once()
    model.register_forward_hook(lambda module, inputs, output: None)
    optimizer = torch.optim.Adam(model.parameters())
    before = facts(model)
    with ADAPTER.preserving(model, parameters=True):
        assert all(each.grad is None for each in model.parameters())
        step = partial(train, model, optimizer, x)
        with ADAPTER.naming_failures(model):
            ADAPTER.record(model, step, device="cpu", inputs=(x,), optimizer=optimizer)
        during = facts_that_moved(model)
    assert facts(model) == before
    assert during != facts_that_moved(model)


def facts_that_moved(model):
    tensors = [*model.parameters(), *model.buffers()]
    return [each.tolist() for each in tensors], model.generator.get_state().tolist()


def test_a_model_that_raises_is_left_as_it_was():
    model, x = trained_once()
    before = facts(model)

    def step():
        model(x)
        raise KeyError("on purpose")

    with pytest.raises(KeyError), ADAPTER.preserving(model, parameters=True):
        ADAPTER.record(model, step, device="cpu", inputs=(x,))
    assert facts(model) == before


def test_without_parameters_asked_for_only_buffers_and_gradients_are_put_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    statistics = model[1].running_mean.clone()
    with ADAPTER.preserving(model), torch.no_grad():
        model(normal(4, 2))
        model[0].weight.fill_(3.0)
    assert (model[0].weight == 3).all()
    assert torch.equal(model[1].running_mean, statistics)
    assert model[1].num_batches_tracked == 0


def test_a_buffer_that_was_computed_is_no_problem():
    model = nn.Linear(2, 2)
    model.register_buffer("doubled", model.weight * 2)
    with ADAPTER.preserving(model, parameters=True):
        model(normal(1, 2)).sum().backward()
    assert model.weight.grad is None
    assert torch.equal(model.doubled, model.weight * 2)


def test_the_same_random_numbers_come_after_a_preserved_block():
    state = torch.get_rng_state()
    expected = torch.rand(3)
    torch.set_rng_state(state)
    with ADAPTER.preserving(nn.Dropout()):
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)


# ---------------------------------------------------------------- devices


def test_a_model_lives_where_its_parameters_are():
    assert ADAPTER.device(nn.Linear(2, 2), (normal(1, 2),)) == "cpu"
    assert ADAPTER.device(nn.Linear(2, 2, device="meta"), (normal(1, 2).to("meta"),)) == "meta"


def test_a_model_without_parameters_lives_where_its_inputs_are():
    assert ADAPTER.device(nn.ReLU(), (normal(2).to("meta"), 3)) == "meta"
    assert ADAPTER.device(nn.ReLU(), ()) == "cpu"


def test_an_input_elsewhere_is_an_error_that_says_how_to_move_it():
    with pytest.raises(
        BackendError, match=r'input \(1, 2\) is on meta, .* on cpu; .*\.to\("cpu"\)'
    ):
        ADAPTER.device(nn.Linear(2, 2), ({"x": normal(1, 2).to("meta")},))


def test_inputs_on_two_devices_are_an_error():
    with pytest.raises(BackendError, match=r"is on meta, the model is on cpu"):
        ADAPTER.device(nn.ReLU(), (normal(2), normal(2).to("meta")))


def test_single_numbers_may_stay_where_they_are():
    model = nn.Linear(2, 2, device="meta")
    assert ADAPTER.device(model, (normal(1, 2).to("meta"), torch.tensor(0.5))) == "meta"


def test_a_model_on_two_devices_is_an_error_that_names_both():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(BackendError, match=r"0\.weight on cpu, 1\.weight on meta"):
        ADAPTER.device(model, ())


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_model_whose_shapes_are_not_known_yet_must_be_called_first():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"0\.weight has no shape yet; call the model once"):
        ADAPTER.device(model, (normal(1, 2),))
    model(normal(1, 2))
    assert ADAPTER.device(model, (normal(1, 2),)) == "cpu"


# ---------------------------------------------------------------- the model


class Holder:
    def __init__(self):
        self.net = nn.Linear(2, 2)
        self.again = self.net
        self.layers = [nn.ReLU(), {"head": nn.Linear(2, 2)}]

    def forward(self, x):
        return self.layers[1]["head"](self.net(x))


class Slotted:
    __slots__ = ("net",)

    def __init__(self):
        self.net = nn.Linear(2, 2)

    def __call__(self, x):
        return self.net(x)


NET = nn.Linear(2, 2)


@pytest.mark.parametrize(
    "model",
    [
        NET,
        NET.forward,
        partial(NET, normal(1, 2)),
        lambda x: NET(x),
        Holder(),
        Holder().forward,
        Slotted(),
    ],
)
def test_what_uses_a_module_of_pytorch_is_found(model):
    adapter = adapter_for(model)
    assert type(adapter) is TorchAdapter
    assert sum(spec.size for spec in adapter.parameters(model)) in (6, 12)
    assert "" in adapter.modules(model)


def test_our_own_models_are_found_also_when_pytorch_is_imported():
    assert adapter_for(CoreSequential()).name == "core"


def test_a_layer_that_is_held_twice_is_one_layer():
    assert list(ADAPTER.modules(Holder())) == ["", "net", "layers.0", "layers.1.head"]


def test_parameters_and_buffers_come_once_with_their_bytes():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(2, 3))
    model[2].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    specs = {spec.name: spec for spec in ADAPTER.parameters(model)}
    assert list(specs) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.bias",
    ]
    assert [name for name, spec in specs.items() if spec.is_buffer] == list(specs)[4:7]
    assert (specs["0.weight"].path, specs["0.weight"].nbytes) == ("0", 24)
    assert specs["1.num_batches_tracked"].nbytes == 8
    assert not specs["2.bias"].is_trainable


def test_a_clone_shares_nothing_and_keeps_its_sharing():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    twin = ADAPTER.clone(model)
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_a_failing_layer_is_named():
    model = nn.Sequential(*[nn.ReLU() for _ in range(7)], nn.Linear(5, 5))
    with (
        pytest.raises(
            ModelError, match=r"^layer '7' \(Linear\) raised RuntimeError: mat1 and mat2"
        ),
        ADAPTER.naming_failures(model),
    ):
        model(normal(2, 3))
    assert not any("forward" in vars(each) for each in model.modules())


# ---------------------------------------------------------------- compiled models


def compiled(how):
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    if how == "wrapped":
        return torch.compile(model, backend="eager")
    (model if how == "in place" else model[0]).compile(backend="eager")
    return model


WATCHED = {"wrapped": [""], "in place": [""], "a part": ["0", "1", ""]}


@pytest.mark.parametrize("how", WATCHED)
def test_watching_a_compiled_model_does_not_compile_it_again(how):
    model, x = compiled(how), normal(1, 2)
    with torch.no_grad():
        plain = model(x)
        counters = torch._dynamo.utils.counters
        counters.clear()
        modules = ADAPTER.watchable_modules(model)
        with stamping_layers(modules, lambda: 0, methods=ADAPTER.methods) as stamps:
            assert torch.equal(model(x), plain)
        with ADAPTER.naming_failures(model):
            model(x)
    assert [path for path, _, _ in stamps] == WATCHED[how]
    assert sorted(modules) == sorted(WATCHED[how])
    assert counters["stats"]["unique_graphs"] == 0


def test_watching_leaves_a_model_that_was_compiled_in_place_as_it_was():
    model = compiled("in place")
    own = model._compiled_call_impl
    with stamping_layers(ADAPTER.watchable_modules(model), lambda: 0, methods=ADAPTER.methods):
        assert model._compiled_call_impl is not own
    assert model._compiled_call_impl is own
    assert not any("forward" in vars(each) for each in model.modules())


# ---------------------------------------------------------------- running it


@dataclass
class Output:
    logits: Any
    loss: Any = None


Pair = namedtuple("Pair", "left right")


def test_tensors_are_found_in_outputs():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert tensors_in({"x": [a, Pair(b, None)], "y": Output(c)}) == [a, b, c]
    assert tensors_in(Output) == tensors_in("text") == tensors_in(None) == []


def test_the_loss_is_the_models_own_or_the_sum_of_its_outputs():
    x = torch.ones(3, requires_grad=True)
    loss = (2 * x).sum()
    assert ADAPTER.scalar_loss(Output(x, loss)) is loss
    assert ADAPTER.scalar_loss({"loss": loss, "logits": x}) is loss
    assert ADAPTER.scalar_loss([x, {"more": 2 * x}, "text", torch.ones(5)]).item() == 3 + 6
    not_one_number = Output(x, 2 * x)
    assert ADAPTER.scalar_loss(not_one_number).item() == 3 + 6


@pytest.mark.parametrize("output", ["text", None, [], torch.ones(1), torch.tensor([1])])
def test_an_output_without_a_graph_has_no_loss(output):
    with pytest.raises(GraphError, match=rf"output \({type(output).__name__}\) holds no tensor"):
        ADAPTER.scalar_loss(output)


def test_optimizers_have_names():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = ADAPTER.make_optimizer(model, "adamw")
    assert [each.shape for each in optimizer.param_groups[0]["params"]] == [(2, 2)]
    with pytest.raises(SettingError, match=r"'lion'; there are sgd, adam, adamw"):
        ADAPTER.make_optimizer(model, "lion")
    with pytest.raises(SettingError, match=r"no parameter with requires_grad"):
        ADAPTER.make_optimizer(nn.ReLU(), "sgd")


def test_without_gradients_no_graph_is_built():
    with ADAPTER.without_gradients():
        assert not nn.Linear(2, 2)(normal(1, 2)).requires_grad


def test_examples_have_the_dtype_that_the_model_wants():
    words = nn.Sequential(nn.Embedding(10, 4), nn.Embedding(7, 4))
    ids = ADAPTER.example((3, 5), words)
    assert ids.shape == (3, 5)
    assert ids.dtype == torch.int64
    assert 0 <= ids.min() <= ids.max() < 7
    assert ADAPTER.example((3, 5, 4), words).dtype == torch.float32
    assert ADAPTER.example((3, 2), nn.Linear(2, 2).bfloat16()).dtype == torch.bfloat16
    assert ADAPTER.example((3, 2), nn.Linear(2, 2, device="meta")).is_meta
    assert torch.equal(ADAPTER.example((3,), nn.ReLU()), ADAPTER.example((3,), nn.ReLU()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_a_digest_tells_outputs_apart_whatever_they_are():
    x = normal(3, 4)
    assert ADAPTER.digest((x, {"y": x})) == ADAPTER.digest([x, x]) != ADAPTER.digest([x, x + 1])
    assert ADAPTER.digest(torch.tensor([float("nan"), 1.0])) == (1.0,)
    assert ADAPTER.digest(x.bfloat16()) == ADAPTER.digest(x.bfloat16())
    for nothing in ("text", None, torch.ones(3).to("meta"), torch.ones(3).to_sparse_coo()):
        assert ADAPTER.digest(nothing) == ()
    for layout in (torch.strided, torch.jagged):
        ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
        assert ADAPTER.digest(ragged) == (6.0, 3.0)


def test_time_on_a_cpu_is_that_of_the_program():
    stamp = ADAPTER.stamp("cpu")
    assert ADAPTER.seconds(stamp(), stamp()) >= 0
    assert ADAPTER.hold_back("cpu", 1.0) is None
    ADAPTER.synchronize("cpu")
    ADAPTER.forget_marks()


class Counting(torch.nn.Module):
    """A model that binds a new tensor to a buffer, and resizes another one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("largest", torch.zeros(0))

    def forward(self, x):
        self.seen = self.seen + 1
        self.largest.resize_(2).fill_(1)
        return x * 2


def test_buffers_that_are_replaced_or_resized_are_put_back():
    model = Counting()
    seen, largest = model.seen, model.largest
    with TorchAdapter().preserving(model):
        model(torch.ones(3))
    assert model.seen is seen
    assert model.largest is largest
    assert (seen.item(), largest.shape) == (0, (0,))


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_the_user_holds_still_runs_backwards(training):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train(training)
    loss = model(torch.ones(3, 4)).sum()
    with TorchAdapter().preserving(model, parameters=True):
        model(torch.ones(3, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    loss.backward()
    assert model[0].weight.grad is not None


def test_every_device_has_its_clock():
    assert ADAPTER.run_clock("cpu") is WALL
    assert ADAPTER.run_clock("cuda:1") == DeviceClock()
    assert ADAPTER.event_clock("cpu") is None
    events = ADAPTER.event_clock("cuda:1")
    assert (events.name, events.device) == ("cuda events", torch.device("cuda:1"))


def test_a_device_without_a_clock_is_not_timed_by_the_wall():
    with pytest.raises(BackendError, match="no clock for device 'mps'"):
        ADAPTER.run_clock("mps")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("in_one_piece", [True, False])
def test_a_copy_has_recurrent_weights_in_as_many_pieces(in_one_piece):
    """In several, every call joins them: a copied LSTM took 1.35 times as long on an H200."""
    model = torch.nn.LSTM(8, 8, num_layers=2, bidirectional=True).cuda()
    if not in_one_piece:
        model = copy.deepcopy(model)
    twin = TorchAdapter().clone(model)

    def pieces(module):
        return len({each.untyped_storage().data_ptr() for each in module.parameters()})

    assert (pieces(model) == 1) is in_one_piece
    assert (pieces(twin) == 1) is in_one_piece
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
