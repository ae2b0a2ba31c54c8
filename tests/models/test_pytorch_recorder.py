import weakref

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
F = nn.functional

from tinytorch.core.layers import Sequential as CoreSequential
from tinytorch.models.adapter import adapter_for
from tinytorch.models.records import Cost

ROWS = 4


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


MLP_MACS = 8 * 16 + 16 * 3  # per row


class Calling(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def record(model, *inputs, backward=False):
    adapter = adapter_for(model)

    def step():
        output = model(*inputs)
        if backward:
            adapter.backward(adapter.scalar_loss(output))
        return output

    device = adapter.device(model, inputs)
    return adapter.record(model, step, device=device, inputs=inputs)


def macs(recording):
    return sum(each.macs for each in recording.operations)


def counted(recording):
    return [each for each in recording.operations if each.cost != Cost("view")]


# ---------------------------------------------------------------- what an operator says of itself


def test_an_operator_is_recorded_with_all_that_is_known_of_it():
    layer, x = nn.Linear(8, 16), normal(ROWS, 8)
    recording = record(layer, x)
    (product,) = counted(recording)
    assert (product.kind, product.path, product.phase) == ("aten.addmm", "", "forward")
    assert [spec.shape for spec in product.inputs] == [(16,), (ROWS, 8), (8, 16)]
    assert [spec.shape for spec in product.outputs] == [(ROWS, 16)]
    assert product.dtype == "float32"
    assert product.cost.macs == ROWS * 8 * 16


def test_times_count_from_the_beginning_of_the_step():
    recording = record(mlp(), normal(ROWS, 8), backward=True)
    times = [each.start for each in recording.operations]
    assert times == sorted(times)
    ends = [each.start + each.duration for each in recording.operations]
    births = [each.born for each in recording.allocations if each.phase != "resident"]
    assert 0 < min(times) < min(births)
    assert max(*ends, *births) <= recording.duration


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x.add_(1), "aten.add"),
        (lambda x: (x > 0).__iand__(x < 1), "aten.bitwise_and"),
        (lambda x: torch.mul(x, 2, out=torch.empty_like(x)), "aten.mul"),
    ],
)
def test_overloads_and_variants_in_place_have_one_name(function, kind):
    recording = record(Calling(function), normal(3))
    kinds = [each.kind for each in counted(recording)]
    assert kind in kinds


def test_results_do_not_depend_on_being_recorded():
    model, x = mlp(), normal(ROWS, 8)
    plain = model(x)
    adapter = adapter_for(model)
    kept = []
    adapter.record(model, lambda: kept.append(model(x)), device="cpu")
    assert torch.equal(kept[0], plain)


def test_a_composed_operator_is_seen_as_what_it_is_made_of():
    recording = record(Calling(lambda x: torch.einsum("ij,kj->ik", x, x)), normal(ROWS, 8))
    assert macs(recording) == ROWS * ROWS * 8
    assert all(each.cost is not None for each in recording.operations)


@pytest.mark.parametrize("function", [lambda x: x.squeeze_(0), lambda x: x.t_(), lambda x: x.T])
def test_views_are_free_also_in_place(function):
    recording = record(Calling(function), normal(1, 8))
    assert recording.operations != ()
    assert counted(recording) == []


# ---------------------------------------------------------------- unknown operators


@pytest.fixture
def unknown_operator():
    """Register an operator that no table knows, for the time of a test."""
    library = torch.library.Library("tinytorch_test", "FRAGMENT")
    library.define("frobnicate(Tensor x, Tensor? y=None) -> (Tensor, Tensor[])")
    library.impl("frobnicate", lambda x, y=None: (x.clone(), [x + 1, x @ x.T]), "CPU")
    yield torch.ops.tinytorch_test.frobnicate
    library._destroy()


def test_an_unknown_operator_is_recorded_without_a_cost(unknown_operator):
    model = nn.Sequential(nn.ReLU(), Calling(lambda x: unknown_operator(x)[0]))
    recording = record(model, normal(ROWS, 8))
    (found,) = [each for each in recording.operations if each.cost is None]
    assert (found.kind, found.path) == ("tinytorch_test.frobnicate", "1")
    assert found.duration > 0
    assert [spec.shape for spec in found.outputs] == [(ROWS, 8), (ROWS, 8), (ROWS, ROWS)]
    made = [each for each in recording.allocations if each.path == "1"]
    assert sum(each.nbytes for each in made) == 4 * (2 * ROWS * 8 + ROWS * ROWS)


def test_an_operator_that_marks_itself_as_elementwise_needs_no_row():
    recording = record(Calling(lambda x: torch.special.bessel_j0(x)), normal(ROWS, 8))
    (found,) = recording.operations
    assert (found.cost.family, found.cost.other_flops) == ("elementwise", ROWS * 8)


# ---------------------------------------------------------------- odd models


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_recorded_as_it_was_written(backend, backward):
    model, x = torch.compile(mlp(), backend=backend), normal(ROWS, 8)
    forwards = {id(each): vars(each).get("forward") for each in model.modules()}
    recording = record(model, x, backward=backward)
    # the input of the first layer needs no gradient
    assert macs(recording) == ROWS * (MLP_MACS + backward * (2 * MLP_MACS - 8 * 16))
    assert {e.path for e in recording.operations if e.macs} == {"_orig_mod.0", "_orig_mod.2"}
    assert {id(each): vars(each).get("forward") for each in model.modules()} == forwards


def test_a_model_that_was_compiled_in_place_is_recorded_as_it_was_written():
    model, x = mlp(), normal(ROWS, 8)
    model.compile(backend="aot_eager")
    model(x)
    assert {e.path for e in record(model, x).operations if e.macs} == {"0", "2"}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("convert", ["script", "trace"])
def test_a_scripted_model_is_recorded_as_one_layer(convert, backward):
    x = normal(ROWS, 8)
    model = torch.jit.script(mlp()) if convert == "script" else torch.jit.trace(mlp(), (x,))
    recording = record(model, x, backward=backward)
    assert macs(recording) == ROWS * (MLP_MACS + backward * (2 * MLP_MACS - 8 * 16))
    assert {each.path for each in recording.operations if each.macs} == {""}
    assert model(x).shape == (ROWS, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_dynamically_quantized_model_counts_its_products():
    model = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)
    recording = record(model, normal(ROWS, 8))
    assert macs(recording) == ROWS * MLP_MACS
    assert {each.path for each in recording.operations if each.macs} == {"0", "2"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_ragged_rows_count_as_often_as_they_are_there(layout):
    rows = [normal(3, 8), normal(5, 8)]
    recording = record(mlp(), torch.nested.nested_tensor(rows, layout=layout))
    assert macs(recording) == 8 * MLP_MACS


class Marked(torch.Tensor):
    """A subclass that says nothing about operators."""


def test_a_subclass_is_recorded_like_its_tensor():
    x = normal(ROWS, 8)
    plain, marked = (record(mlp(), each, backward=True) for each in (x, x.as_subclass(Marked)))
    assert [(e.kind, e.path, e.macs) for e in counted(marked)] == [
        (e.kind, e.path, e.macs) for e in counted(plain)
    ]


class Doubled(torch.Tensor):
    """A subclass that holds two tensors and computes everything with both."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["a"], parts["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def part(name):
            tree = torch.utils._pytree.tree_map_only(cls, lambda each: getattr(each, name), args)
            return func(*tree, **(kwargs or {}))

        a, b = part("a"), part("b")
        return cls(a, b) if isinstance(a, torch.Tensor) else a


def test_a_wrapper_is_recorded_by_what_it_computes_and_holds():
    x = Doubled(normal(ROWS, 8), normal(ROWS, 8))
    recording = record(mlp(), x)
    assert macs(recording) == 2 * ROWS * MLP_MACS
    assert {each.path for each in recording.operations if each.macs} == {"0", "2"}
    held = [each.nbytes for each in recording.allocations if each.category == "inputs"]
    assert held == [ROWS * 8 * 4] * 2


def test_a_model_without_memory_is_counted_all_the_same():
    model, x = mlp().to("meta"), normal(ROWS, 8).to("meta")
    assert macs(record(model, x)) == ROWS * MLP_MACS
    assert macs(record(model, x, backward=True)) == ROWS * (3 * MLP_MACS - 8 * 16)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))),
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))),
        lambda: torch.fx.symbolic_trace(mlp()),
        lambda: mlp().bfloat16(),
        lambda: Calling(lambda x: torch.func.vmap(lambda row: row @ row)(x)),
        lambda: Calling(lambda x: torch.func.grad(lambda y: (y @ y.T).sum())(x)),
        lambda: Calling(lambda x: x.to_sparse_coo().to_dense()),
        lambda: Calling(
            lambda x: torch.utils.checkpoint.checkpoint(torch.relu, x, use_reentrant=False)
        ),
    ],
    ids=["weight norm", "spectral norm", "fx", "bfloat16", "vmap", "grad", "sparse", "checkpoint"],
)
def test_unusual_models_are_recorded(build):
    model = build()
    dtype = next((each.dtype for each in model.parameters()), torch.float32)
    recording = record(model, normal(ROWS, 8).to(dtype))
    assert recording.operations != ()
    assert all(each.cost is None or each.cost.macs >= 0 for each in recording.operations)


def test_autocast_is_seen_with_the_dtype_that_computes():
    model = mlp()

    def automatic(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    recording = record(Calling(automatic), normal(ROWS, 8))
    assert {each.dtype for each in recording.operations if each.macs} == {"bfloat16"}


def test_a_model_of_our_own_is_not_recorded_as_one_of_pytorch():
    assert adapter_for(CoreSequential()).name == "core"


# ---------------------------------------------------------------- nothing stays behind


def test_a_recording_that_fails_leaves_nothing_behind():
    model = nn.Sequential(nn.Linear(8, 8), Calling(lambda x: x @ x))
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied"):
        record(model, normal(ROWS, 8))
    assert modes() == []
    assert not any("forward" in vars(each) for each in model.modules())


def test_a_recording_keeps_nothing_alive():
    model, x = mlp(), normal(ROWS, 8)
    alive = []

    def step():
        output = model(x)
        alive.append(weakref.ref(output))
        return output

    adapter_for(model).record(model, step, device="cpu", inputs=(x,))
    assert alive[0]() is None


def test_recordings_can_be_nested():
    inner, outer, x = mlp(), mlp(), normal(ROWS, 8)
    found = []

    def both(x):
        found.append(record(inner, x))
        return outer(x)

    recording = record(Calling(both), x)
    assert macs(found[0]) == ROWS * MLP_MACS
    assert macs(recording) == 2 * ROWS * MLP_MACS
