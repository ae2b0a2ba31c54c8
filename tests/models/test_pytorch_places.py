import threading

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
from torch.utils.checkpoint import checkpoint

from tinytorch.models.adapter import entering_layers
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_recorder import Places

ADAPTER = TorchAdapter()
X = torch.ones(3, 4)


def places(model, step, phase, *, optimizer=None):
    """Give kind and path of all that was computed in a phase."""
    recording = ADAPTER.record(model, step, device="cpu", optimizer=optimizer)
    return [
        (each.kind.removeprefix("aten."), each.path)
        for each in recording.operations
        if each.phase == phase and each.cost.family != "view"
    ]


def products(model, step, phase):
    return [path for kind, path in places(model, step, phase) if kind in ("mm", "addmm")]


def training(model, optimizer=None):
    def step():
        loss = model(X).square().sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    return step


class Tied(nn.Module):
    """A layer in two places, a list of layers, and functional code around them."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = self.one
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.ReLU())])

    def forward(self, x):
        x = self.two(self.one(x)).exp()
        for block in self.blocks:
            x = block(x) + 1
        return x


def test_every_operator_belongs_to_its_layer_and_the_loss_to_none():
    model = Tied()
    assert places(model, training(model), "forward") == [
        ("addmm", "one"),
        ("addmm", "one"),
        ("exp", ""),
        ("addmm", "blocks.0"),
        ("add", ""),
        ("relu", "blocks.1.0"),
        ("add", ""),
        ("pow", None),
        ("sum", None),
        ("ones_like", None),  # the seed of the backward pass
    ]


def test_a_backward_operator_belongs_to_the_layer_whose_forward_made_it():
    model = Tied()
    found = places(model, training(model), "backward")
    assert [path for kind, path in found if kind == "mm"] == ["blocks.0", "blocks.0"] + ["one"] * 3
    assert ("threshold_backward", "blocks.1.0") in found
    assert ("mul", "") in found  # of exp
    assert ("mul", None) in found  # of the loss


def test_an_update_is_a_phase_of_its_own():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters())
    found = places(model, training(model, optimizer), "update", optimizer=optimizer)
    assert found != []
    assert {path for _, path in found} == {None}
    assert "step" not in vars(optimizer)


def test_a_scheduler_does_not_notice_that_its_optimizer_is_watched():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    own = optimizer.step

    def step():
        training(model, optimizer)()
        scheduler.step()  # warns when nobody has called optimizer.step

    assert places(model, step, "update", optimizer=optimizer) != []
    assert optimizer.step == own


def test_the_model_may_run_inside_of_an_update():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure)

    def record(phase):
        return places(model, step, phase, optimizer=optimizer)

    assert {path for kind, path in record("forward") if kind == "addmm"} == {""}
    assert {path for kind, path in record("backward") if kind == "mm"} == {""}
    assert {path for _, path in record("update")} == {None}


# ---------------------------------------------------------------- checkpoints


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.before = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
        self.after = nn.Linear(4, 2)

    def forward(self, x):
        x = checkpoint(self.inner, self.before(x), use_reentrant=self.reentrant)
        return self.after(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_belongs_to_its_layers(reentrant):
    model = Checkpointed(reentrant=reentrant)
    assert products(model, training(model), "forward") == ["before", "inner.0", "inner.2", "after"]
    found = places(model, training(model), "backward")
    again = [path for kind, path in found if kind in ("addmm", "relu")]
    assert again[:2] == ["inner.0", "inner.1"]
    gradients = [path for kind, path in found if kind == "mm"]
    # the input of the first layer needs no gradient
    assert gradients == ["after"] * 2 + ["inner.2"] * 2 + ["inner.0"] * 2 + ["before"]
    assert ("threshold_backward", "inner.1") in found


@pytest.mark.parametrize("reentrant", [True, False])
def test_two_checkpoints_do_not_mix(reentrant):
    model = nn.Sequential(Checkpointed(reentrant=reentrant), nn.Linear(2, 4))
    model.append(Checkpointed(reentrant=reentrant))
    found = places(model, training(model), "backward")
    gradients = [path for kind, path in found if kind == "mm"]
    second = ["2.after"] * 2 + ["2.inner.2"] * 2 + ["2.inner.0"] * 2 + ["2.before"] * 2
    first = ["0.after"] * 2 + ["0.inner.2"] * 2 + ["0.inner.0"] * 2 + ["0.before"]
    assert gradients == [*second, *["1"] * 2, *first]


class Spy(torch.utils._python_dispatch.TorchDispatchMode):
    """Asks where every product belongs, in a thread of its own."""

    def __init__(self, followed):
        super().__init__()
        self.followed, self.products = followed, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.products.append(self.followed.now())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_may_run_in_another_thread_as_on_a_gpu(reentrant):
    """Every thread counts its nodes from zero, so that the numbers of two threads overlap."""
    model = Checkpointed(reentrant=reentrant)
    followed = Places()
    spy = Spy(followed)

    def backward(loss):
        with spy:
            loss.backward()

    with entering_layers(dict(model.named_modules()), followed.enter_layer, followed.leave_layer):
        thread = threading.Thread(target=backward, args=(model(X).sum(),))
        thread.start()
        thread.join()
    expected = ["after"] * 2 + ["inner.2"] * 2 + ["inner.0"] * 2 + ["before"]
    assert spy.products == [(path, "backward") for path in expected]


# ---------------------------------------------------------------- odd orders


def test_a_backward_pass_inside_of_a_layer_belongs_to_the_layers_that_it_passes():
    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.net(x).sum(), x)[0]

    model = nn.Sequential(Slope(), nn.Linear(4, 2))
    found = products(model, lambda: model(X), "backward")
    assert found == ["0.net.1", "0.net.0"]


def test_a_graph_from_before_the_recording_belongs_to_nobody():
    model = nn.Linear(4, 2)
    loss = model(X).sum()
    assert set(products(model, lambda: loss.backward(), "backward")) == {None}


def test_a_layer_that_calls_itself_and_one_that_raises_leave_the_right_layer_behind():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, x, depth=2):
            try:
                self.net(x[:, :1])  # does not fit
            except RuntimeError:
                x = x + 1
            return self(self.net(x), depth - 1) * 2 if depth else x

    model = nn.Sequential(Recursive())
    found = places(model, lambda: model(X), "forward")
    assert {path for kind, path in found if kind == "mul"} == {"0"}
    assert [path for kind, path in found if kind == "add"] == ["0"] * 3
    assert found[-1] == ("mul", "0")


def test_outside_of_all_layers_is_what_the_recorder_was_told():
    assert Places().now() == (None, "forward")
    followed = Places("")
    assert followed.now() == ("", "forward")
    followed.enter_layer("a")
    followed.enter_layer("a.b")
    assert followed.now() == ("a.b", "forward")
    followed.leave_layer("a.b", KeyError(), None)
    assert followed.now() == ("a", "forward")
    followed.leave_layer("a", None, None)
    followed.begin_update("")
    assert followed.now() == (None, "update")
    followed.end_update("", None, None)
    assert followed.now() == ("", "forward")


class Plain:
    def __init__(self):
        self.net = nn.Linear(4, 4)
        self.again = self.net
        self.layers = [nn.ReLU(), {"last": nn.Linear(4, 2)}]

    def forward(self, x):
        return self.layers[1]["last"](self.layers[0](self.again(x))).tanh()


def test_a_plain_object_is_a_model():
    model = Plain()
    step = lambda: model.forward(X).sum().backward()  # noqa: E731
    assert places(model, step, "forward")[:5] == [
        ("addmm", "net"),
        ("relu", "layers.0"),
        ("addmm", "layers.1.last"),
        ("tanh", ""),
        ("sum", None),
    ]
    assert ("tanh_backward", "") in places(model, step, "backward")
    assert vars(model).keys() == {"net", "again", "layers"}


class Slotted:
    __slots__ = ("net",)

    def __init__(self):
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        return self.net(x).tanh()


def test_what_cannot_be_watched_itself_owns_all_that_no_layer_runs():
    slotted, net = Slotted(), nn.Sequential(nn.Linear(4, 4))

    def function(x):
        return net(x.exp()).tanh()

    method = net.forward
    assert places(slotted, lambda: slotted.forward(X), "forward") == [
        ("addmm", "net"),
        ("tanh", ""),
    ]
    assert places(function, lambda: function(X), "forward") == [
        ("exp", ""),
        ("addmm", "net.0"),
        ("tanh", ""),
    ]
    assert places(method, lambda: method(X).tanh(), "forward") == [("addmm", "0"), ("tanh", "")]
    x = torch.ones(3, 4, requires_grad=True)
    found = places(function, lambda: function(x).sum().backward(), "backward")
    assert ("tanh_backward", "") in found
    assert ("mul", "") in found  # of exp, before the first layer
