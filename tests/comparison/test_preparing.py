from dataclasses import replace

import pytest
from parts import require_part

from tinytorch.comparison import compare as preparing
from tinytorch.comparison.compare import duration_text, warm_up_side, with_room
from tinytorch.comparison.sides import Known, LocalSide, WorkloadSide
from tinytorch.errors import ModelError
from tinytorch.models.workload import FIRST_CALL, Preparation, Workload

torch = require_part("torch")
nn = torch.nn

X = torch.ones(2, 8)
BUDGET_S = 60.0


class Counted(nn.Module):
    """Counts its copies, and takes as long as it is told, call by call."""

    def __init__(self, seconds=(), copied=0.0):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.seconds, self.copies, self.of_copies, self.own = seconds, [0], copied, 0

    def __deepcopy__(self, memo):
        self.copies[0] += 1
        twin = Counted(self.of_copies and (self.of_copies,))
        twin.copies, twin.of_copies = self.copies, self.of_copies
        return twin

    def forward(self, x):
        self.own += 1
        return self.linear(x)


class OutOfMemoryError(RuntimeError):
    pass


def full():
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")


def model_side(model=None, name="candidate", device=None):
    given = Counted() if model is None else model
    side = WorkloadSide(Workload("w", given, (X,)), name=name)
    if device:
        side.device = device
    return side


@pytest.fixture
def told_seconds(monkeypatch):
    """Let calls take what their model says, or nothing, and building nothing."""

    def call_seconds(side):
        side.call()
        model = side._function.args[0] if side.can_rebuild else side.workload.model
        index = model.own - 1
        return model.seconds[index] if index < len(model.seconds) else 1e-3

    monkeypatch.setattr(LocalSide, "call_seconds", call_seconds)
    monkeypatch.setattr(preparing, "seconds_of", lambda function: function() or 0.0)


# ---------------------------------------------------------------- what is never copied


def test_a_prepared_model_is_never_copied():
    model = Counted()
    model.preparations = (Preparation("compiled", 12.3), Preparation("captured", 0.5, 7))
    side = model_side(model)
    warm_up_side(side, BUDGET_S)
    assert model.copies == [0]
    assert side.preparations == model.preparations
    assert side.notes == [
        "candidate is not built anew for every round: it was compiled once in 12 s and captured "
        "once in 0.5 s, which a copy would have to do again"
    ]


@pytest.mark.parametrize("how", ["wrapped", "in place", "its forward"])
def test_a_model_that_the_user_compiled_is_never_copied(how):
    model = Counted()
    if how == "wrapped":
        compiled = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.forward = torch.compile(model.forward, backend="eager")
    side = model_side(compiled if how == "wrapped" else model)
    warm_up_side(side, BUDGET_S)
    assert model.copies == [0]
    assert not side.can_rebuild
    assert "first call" in side.notes[0]


def test_a_model_that_says_what_its_first_call_did_is_believed(told_seconds):
    class Lazy(Counted):
        preparations = ()

        def forward(self, x):
            self.preparations = self.preparations or (Preparation("captured", 4.0, 7),)
            return super().forward(x)

    model = Lazy([4.1, 0.01, 0.01])
    side = model_side(model)
    warm_up_side(side, BUDGET_S)
    assert model.copies == [0]
    assert side.preparations == (Preparation("captured", 4.0, 7),)


def test_other_models_are_copied():
    side = model_side()
    warm_up_side(side, BUDGET_S)
    assert side.can_rebuild
    assert side.workload.model.copies[0] >= 2
    assert (side.notes, side.preparations) == ([], ())


# ---------------------------------------------------------------- copies that are another model


class Forgetful(nn.Module):
    """Loses something of itself when it is copied; `forget` says what."""

    def __init__(self, forget=None):
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 3).to(memory_format=torch.channels_last)
        self.forget = forget

    def __deepcopy__(self, memo):
        twin = Forgetful(self.forget)
        twin.conv.load_state_dict(self.conv.state_dict())
        if self.forget:
            self.forget(twin)
        return twin

    def forward(self, x):
        return self.conv(x)


def plain_strides(model):
    model.conv.to(memory_format=torch.contiguous_format)


def wide_numbers(model):
    model.conv.bias.data = model.conv.bias.data.double()


def no_gradients(model):
    model.conv.weight.requires_grad_(False)


@pytest.mark.parametrize(
    ("forget", "difference"),
    [
        (plain_strides, "strides of 'conv.weight'"),
        (wide_numbers, "dtype of 'conv.bias'"),
        (no_gradients, "requires_grad of 'conv.weight'"),
    ],
)
def test_a_copy_that_lies_otherwise_in_memory_is_not_timed(forget, difference):
    model = Forgetful(forget)
    side = WorkloadSide(Workload("w", model, (torch.ones(1, 8, 5, 5),)), name="candidate")
    if forget is wide_numbers:
        side.call = lambda: None  # it could not be called
    warm_up_side(side, BUDGET_S)
    assert not side.can_rebuild
    assert side.copy_difference == difference
    assert difference in side.notes[0]
    side.build()
    assert side._function == side.workload.run


def test_a_copy_without_a_forward_of_its_own_is_not_timed():
    model = Forgetful()
    model.forward = lambda x: model.conv(x) * 2
    side = WorkloadSide(Workload("w", model, (torch.ones(1, 8, 5, 5),)), name="candidate")
    warm_up_side(side, BUDGET_S)
    assert not side.can_rebuild
    assert side.copy_difference == "forward of its own"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_copy_that_is_packed_by_other_kernels_is_not_timed():
    engines = torch.backends.quantized
    if not {"fbgemm", "onednn"} <= set(engines.supported_engines):
        pytest.skip("this PyTorch has one engine")
    before = engines.engine
    try:
        engines.engine = "fbgemm"
        layer = torch.ao.nn.quantized.Conv2d(8, 4, 3)
        engines.engine = "onednn"
        x = torch.quantize_per_tensor(torch.ones(1, 8, 5, 5), 0.1, 0, torch.quint8)
        side = WorkloadSide(Workload("w", nn.Sequential(layer), (x,)), name="candidate")
        warm_up_side(side, BUDGET_S)
    finally:
        engines.engine = before
    assert not side.can_rebuild
    assert side.copy_difference == "packed weights of '0._packed_params'"


def test_a_faithful_copy_is_timed():
    model = Forgetful()
    side = WorkloadSide(Workload("w", model, (torch.ones(1, 8, 5, 5),)), name="candidate")
    warm_up_side(side, BUDGET_S)
    assert side.can_rebuild
    assert (side.copy_difference, side.notes) == ("", [])


# ---------------------------------------------------------------- first calls


def test_first_calls_that_are_slow_are_a_preparation(told_seconds):
    model = Counted([8.0, 2.0, 0.01, 0.01])
    side = model_side(model)
    side.stay_as_it_is("it is one of a kind")
    warm_up_side(side, BUDGET_S)
    (found,) = side.preparations
    assert found.what == FIRST_CALL
    assert found.seconds == pytest.approx(8.0 + 2.0 - 2 * 0.01)
    assert model.own == 4  # it was called until two calls agreed


def test_a_slow_model_is_not_one_with_a_slow_first_call(told_seconds):
    model = Counted([0.5, 0.45, 0.45])
    side = model_side(model)
    side.stay_as_it_is("it is one of a kind")
    warm_up_side(side, BUDGET_S)
    assert side.preparations == ()


def test_a_model_that_never_settles_is_not_called_for_ever(told_seconds):
    model = Counted([4.0**-index for index in range(50)])
    side = model_side(model)
    side.stay_as_it_is("it is one of a kind")
    warm_up_side(side, BUDGET_S)
    assert model.own == preparing.FIRST_CALLS


def test_copies_whose_first_calls_are_slow_are_not_made_again_and_again(told_seconds):
    model = Counted(copied=3.0)
    side = model_side(model)
    warm_up_side(side, BUDGET_S)
    assert model.copies == [2]
    assert side.notes[0].endswith(
        "the first call of a copy takes 3 s, the second 0.001 s: every copy would be prepared again"
    )
    assert [each.what for each in side.preparations] == [FIRST_CALL]


def test_copies_that_take_too_long_are_not_made_again_and_again(told_seconds):
    model = Counted(copied=0.04)
    side = model_side(model)
    warm_up_side(side, 0.1)
    assert side.notes[0].endswith("copying and calling it takes 0.04 s; give a larger budget_s")


class Sluggish(Counted):
    """Takes long in every call, and so do its copies; `all_calls` counts those of both."""

    def __init__(self):
        super().__init__([0.8] * 50)
        self.all_calls = []

    def __deepcopy__(self, memo):
        twin = Sluggish()
        twin.all_calls = self.all_calls
        return twin

    def forward(self, x):
        self.all_calls.append(1)
        return super().forward(x)


def test_a_model_whose_calls_take_much_of_the_budget_is_called_three_times(told_seconds):
    side = model_side(Sluggish())
    warm_up_side(side, 2.0)
    assert len(side.workload.model.all_calls) == 3  # its copy until two agree, and itself
    assert side.notes == [
        "candidate is not built anew for every round: a call takes 0.8 s; give a larger budget_s"
    ]
    assert (side.slow_call_s, side.preparations) == (0.8, ())


def test_a_model_whose_calls_are_known_to_take_much_of_the_budget_is_called_once(told_seconds):
    side = model_side(Sluggish())
    side.known = Known(call_s=0.85)
    warm_up_side(side, 2.0)
    assert len(side.workload.model.all_calls) == 1  # about as long as was said
    assert (side.can_rebuild, side.slow_call_s) == (False, 0.8)
    assert side.notes[0].endswith("a call takes 0.85 s; give a larger budget_s")


def test_what_is_said_about_slow_calls_is_not_believed_for_ever(told_seconds):
    side = model_side(Counted([0.01] * 9))
    side.known = Known(call_s=0.8)
    warm_up_side(side, 2.0)
    assert (side.can_rebuild, side.slow_call_s) == (False, 0.0)


def test_what_is_known_to_be_quick_for_the_budget_is_copied(told_seconds):
    side = model_side(Sluggish())
    side.known = Known(call_s=0.8)
    warm_up_side(side, BUDGET_S)
    assert (side.can_rebuild, side.slow_call_s) == (True, 0.0)


def test_the_same_model_is_copied_where_the_budget_allows_that(told_seconds):
    side = model_side(Sluggish())
    warm_up_side(side, BUDGET_S)
    assert (side.can_rebuild, side.slow_call_s) == (True, 0.0)


def test_a_factory_of_slow_functions_builds_one(monkeypatch):
    side, made = factory_side(monkeypatch, *[0.8] * 50)
    warm_up_side(side, 2.0)
    assert (side.can_rebuild, side.slow_call_s, len(made)) == (False, 0.8, 1)


def test_a_function_whose_first_call_is_slow_has_a_preparation(monkeypatch):
    seconds = iter([5.0, 0.1, 0.1, 0.1])
    monkeypatch.setattr(LocalSide, "call_seconds", lambda side: next(seconds))
    side = LocalSide("a", lambda: len, can_rebuild=False)
    warm_up_side(side, BUDGET_S)
    assert side.preparations == (Preparation(FIRST_CALL, pytest.approx(4.9)),)


def factory_side(monkeypatch, *seconds):
    """Give a side whose functions take so long, each from its first call on, and the functions."""
    made = []

    def make():
        left = iter(seconds)
        made.append(lambda: next(left, 1e-3))
        return made[-1]

    monkeypatch.setattr(LocalSide, "call_seconds", LocalSide.call)
    return LocalSide("a", make, can_rebuild=True), made


def test_what_a_factory_makes_is_left_to_the_rounds(monkeypatch):
    side, made = factory_side(monkeypatch, 0.05)
    warm_up_side(side, BUDGET_S)
    assert side.can_rebuild
    assert (len(made), side.preparations, side._function) == (1, (), None)


def test_what_a_factory_makes_is_kept_if_it_would_be_prepared_in_every_round(monkeypatch):
    side, made = factory_side(monkeypatch, 4.0, 2.0)
    warm_up_side(side, BUDGET_S)
    assert not side.can_rebuild
    assert side._function is made[-1]
    assert made[-1]() == 1e-3  # it was called until two calls agreed
    assert [each.what for each in side.preparations] == [FIRST_CALL]
    assert "the first calls of what it builds take 6 s longer" in side.notes[0]


def test_a_factory_that_prepares_something_for_all_it_makes_goes_on(monkeypatch):
    side, _ = factory_side(monkeypatch)
    seconds = iter([3.0])
    monkeypatch.setattr(LocalSide, "call_seconds", lambda side: side.call() and next(seconds, 1e-3))
    warm_up_side(side, BUDGET_S)
    assert side.can_rebuild
    assert side.preparations == (Preparation(FIRST_CALL, pytest.approx(3.0, abs=0.01)),)


def test_pools_that_first_calls_leave_behind_are_counted(monkeypatch):
    pools = iter([100, 5100])
    monkeypatch.setattr(preparing, "private_pool_bytes", lambda device: next(pools))
    side = LocalSide("a", lambda: lambda: None, can_rebuild=False)
    warm_up_side(side, BUDGET_S)
    assert [each.nbytes for each in side.preparations] == [5000]


# ---------------------------------------------------------------- a full device


class TooLarge(Counted):
    def __deepcopy__(self, memo):
        full()


def test_a_model_without_room_for_a_copy_runs_itself():
    side = model_side(TooLarge(), device="cuda:0")
    warm_up_side(side, BUDGET_S)
    assert not side.can_rebuild
    assert "cuda:0 has no room for a copy (it asked for 3.00 GiB more)" in side.notes[0]


def test_a_model_that_does_not_fit_at_all_says_how_much_is_missing():
    class Huge(TooLarge):
        def forward(self, x):
            full()

    side = model_side(Huge(), device="cuda:0")
    message = "candidate does not fit on cuda:0: it asked for 3.00 GiB more"
    with pytest.raises(ModelError, match=message):
        warm_up_side(side, BUDGET_S)


def room_for(copies):
    """Give a function that fails as long as more sides are copied."""

    def run(*sides):
        if sum(side.can_rebuild for side in sides) > copies:
            try:
                full()
            except OutOfMemoryError as error:
                raise ModelError("candidate could not be built") from error
        return "measured"

    return run


@pytest.mark.parametrize(("copies", "copied"), [(2, 2), (1, 1), (0, 0)])
def test_copies_are_given_up_one_by_one(copies, copied):
    small, large = model_side(name="small", device="cuda:0"), model_side(device="cuda:0")
    large.workload = replace(large.workload, model=nn.Linear(8, 1000))
    run = room_for(copies)
    assert with_room(small, large, lambda: run(small, large)) == "measured"
    assert sum(side.can_rebuild for side in (small, large)) == copied
    if copies == 1:
        assert small.can_rebuild
        assert "no room for copies of both models (it asked for 3.00 GiB more)" in large.notes[0]


def test_two_models_that_do_not_fit_together_say_so():
    sides = [model_side(name=name, device="cuda:0") for name in ("one", "other")]
    run = room_for(-1)
    with pytest.raises(ModelError, match="one and other do not fit on the device together: it ask"):
        with_room(*sides, lambda: run(*sides))


def test_other_failures_are_not_tried_again():
    sides = [model_side(name=name, device="cuda:0") for name in ("one", "other")]
    calls = []

    def broken():
        calls.append(1)
        raise ModelError("one raised")

    with pytest.raises(ModelError, match="one raised"):
        with_room(*sides, broken)
    assert len(calls) == 1


def test_what_failed_is_freed_before_the_next_try():
    sides = [model_side(name=name, device="cuda:0") for name in ("one", "other")]
    seen = []

    def run():
        seen.append([side._function is None for side in sides if side.can_rebuild])
        for side in sides:
            side.build()
        return room_for(0)(*sides)

    with_room(*sides, run)
    assert seen == [[True, True], [True], []]


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "12 s"), (0.337, "0.34 s"), (1.0, "1 s"), (300, "300 s")]
)
def test_durations_have_two_digits(seconds, text):
    assert duration_text(seconds) == text
