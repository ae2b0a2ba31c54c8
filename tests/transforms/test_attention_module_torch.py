import copy
import pickle

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.graph import (
    FusedCalls,
    GraphCode,
    call_kind,
    fuse_in_place,
    is_fused,
)
from tinytorch.transforms.fuse_attention.kernel import expect

X = torch.arange(4.0)
CODE = GraphCode(
    "def forward(self, x):\n    return torch.add(x, self.base)", {}, {"torch": "torch"}
)


class Sum(nn.Module):
    """Gives the negative of what the fused code gives, to tell them apart."""

    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(torch.ones(()))
        self.calls = 3
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, sign=-1):
        return sign * (x + self.base)

    def other(self):
        return "other"


def fused():
    model = Sum().eval()
    kind, _ = call_kind(False, (X,), {})
    fuse_in_place(model, FusedCalls({kind: CODE}, model, ("dropout",)))
    return model


def is_by_hand(model, *inputs, **keywords):
    return float(model(*inputs, **keywords).detach().flatten()[0]) < 0


def test_calls_of_the_same_kind_are_fused_and_others_by_hand():
    model = fused()
    assert is_fused(model)
    assert not is_by_hand(model, X)
    assert not is_by_hand(model, X[:2])
    assert is_by_hand(model, X[None][0], -1)
    assert is_by_hand(model, X, sign=-1)
    assert is_by_hand(model, X[None])
    assert is_by_hand(model.train(), X)
    assert not is_by_hand(model.eval(), X)


def test_the_module_stays_what_it_was():
    model = fused()
    assert isinstance(model, Sum)
    assert model.other() == "other"
    assert model.calls == 3
    assert [*model.state_dict()] == ["base"]
    assert "FusedSum" in repr(model)


def test_what_is_left_out_must_be_idle():
    model = fused()
    model.dropout.train()
    assert is_by_hand(model, X)
    model.dropout.eval()
    handle = model.dropout.register_forward_hook(lambda *call: None)
    assert is_by_hand(model, X)
    handle.remove()
    assert not is_by_hand(model, X)


def change_rate(model):
    model.dropout.p = 0.1


def replace_dropout(model):
    model.dropout = nn.AlphaDropout(0.5).eval()


def set_attribute(model):
    model.calls = 4


def set_secretly(model):
    vars(model)["calls"] = 4


@pytest.mark.parametrize("change", [change_rate, replace_dropout, set_attribute, set_secretly])
def test_what_the_graph_does_not_know_is_by_hand(change):
    model = fused()
    model.calls = 3
    model.new = 5
    assert not is_by_hand(model, X)
    change(model)
    assert is_by_hand(model, X)


def test_a_branch_that_was_not_taken_is_by_hand():
    code = GraphCode(
        "def forward(self, x):\n    expect(x.numel() > 3, True)\n    return x + self.base",
        {"expect": expect},
        {},
    )
    model = Sum().eval()
    fuse_in_place(model, FusedCalls({call_kind(False, (X,), {})[0]: code}, model, ()))
    assert not is_by_hand(model, X)
    assert is_by_hand(model, X[:2])


def test_fusing_again_adds_kinds_of_calls():
    model = fused()
    kind, _ = call_kind(False, (X[None],), {})
    fuse_in_place(model, FusedCalls({kind: CODE}, model, ()))
    for each in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(each).__name__ == "FusedSum"
        assert not is_by_hand(each, X)
        assert not is_by_hand(each, X[None])


def test_pickled_modules_stay_fused():
    model = pickle.loads(pickle.dumps(fused()))
    assert is_fused(model)
    assert not is_by_hand(model, X)
    assert is_by_hand(model, X, sign=-1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((X,), (X[None],)),
        ((X, 1), (X, True)),
        ((X, 1), (X, 1.0)),
        ((X, None), (X,)),
        (((X, X),), ([X, X],)),
        (({"a": X},), ({"b": X},)),
        ((X, "a"), (X, "b")),
    ],
)
def test_calls_that_may_differ_in_their_graph_are_of_different_kinds(one, other):
    assert call_kind(False, one, {})[0] != call_kind(False, other, {})[0]
    assert call_kind(False, one, {})[0] == call_kind(False, one, {})[0] is not None
    assert call_kind(False, one, {})[0] != call_kind(True, one, {})[0]


def test_tensors_come_in_the_order_of_the_call():
    parts = [torch.full((1,), float(number)) for number in range(5)]
    _, tensors = call_kind(
        False, (parts[0], (parts[1], [parts[2]])), {"b": parts[4], "a": parts[3]}
    )
    assert [int(each) for each in tensors] == [0, 1, 2, 3, 4]


def test_objects_have_no_kind():
    assert call_kind(False, (X, object()), {})[0] is None
    assert call_kind(False, (X,), {"cache": [object()]})[0] is None
