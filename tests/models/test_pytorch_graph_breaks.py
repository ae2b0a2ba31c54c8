import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as entries_of
from torch._dynamo.utils import counters

from tinytorch.models import pytorch_compile as pytorch_graph_breaks
from tinytorch.models.pytorch_compile import (
    GraphBreak,
    graphs_of,
    own_entrance,
    users_line,
)

X = torch.ones(2, 4)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        if x.sum() > 1e9:  # the break
            x = x + 1
        return self.linear(x)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Branching()

    def forward(self, x):
        return self.inner(x) * 2


def line_of_the_break():
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if "# the break" in line)


def without_gradients(call, *arguments, **settings):
    with torch.no_grad():
        return call(*arguments, **settings)


def test_every_entrance_has_code_of_its_own():
    one, other = own_entrance(len), own_entrance(len)
    assert one([1, 2]) == other([1, 2]) == 2
    assert one.__code__ is not other.__code__
    assert one.__code__.co_name != other.__code__.co_name


def test_a_model_without_breaks_is_one_graph():
    graphs = graphs_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (X,))
    assert (graphs.count, graphs.breaks) == (1, ())


def test_a_break_is_named_by_the_users_line():
    (found,) = without_gradients(graphs_of, Outer(), (X,)).breaks
    assert (found.file, found.line) == (__file__, line_of_the_break())
    assert found.code == "if x.sum() > 1e9:  # the break"
    assert "ata-dependent" in found.reason
    assert "\n" not in found.reason


def test_keywords_are_passed_on():
    assert graphs_of(nn.Linear(4, 4), (), {"input": X}).count == 1


def test_graphs_that_other_sizes_need_are_counted():
    more = [((torch.ones(rows, 4),), {}) for rows in (3, 4)]
    assert graphs_of(nn.Linear(4, 4), (X,), then=more).later == (1, 0)
    assert graphs_of(nn.Linear(4, 4), (X,), dynamic=True, then=more).later == (0, 0)


def test_looking_for_breaks_leaves_nothing_behind():
    torch._dynamo.reset_code(Branching.forward.__code__)
    counters["graph_break"]["of another model"] = 3
    before = {name: dict(each) for name, each in counters.items()}
    without_gradients(graphs_of, Branching(), (X,))
    assert {name: dict(each) for name, each in counters.items()} == before
    assert entries_of(Branching.forward.__code__) == []
    del counters["graph_break"]["of another model"]


def test_looking_for_breaks_keeps_what_others_compiled():
    graphs = []

    def counting(graph, examples):
        graphs.append(graph)
        return graph.forward

    call = torch.compile(Branching(), backend=counting)
    without_gradients(call, X)
    made = len(graphs)
    without_gradients(graphs_of, Branching(), (X,))
    without_gradients(call, X)
    assert len(graphs) == made
    torch._dynamo.reset_code(Branching.forward.__code__)


def test_an_error_of_the_model_is_raised():
    with pytest.raises(ValueError, match="not today"):
        graphs_of(raising, (X,))


def raising(x):
    raise ValueError("not today")


def test_a_break_is_said_in_one_line():
    found = GraphBreak("/somewhere/model.py", 7, "print(x)", "printing")
    assert str(found) == "model.py:7 `print(x)`: printing"
    assert str(GraphBreak("", 0, "", "unknown")) == "somewhere: unknown"


def test_long_reasons_are_cut():
    assert pytorch_graph_breaks._reason("") == "torch gave no reason"
    assert len(pytorch_graph_breaks._reason("x" * 999)) == pytorch_graph_breaks.LONGEST_REASON


def test_the_users_line_is_neither_torchs_nor_ours():
    frames = [("mine.py", 3), (torch.__file__, 5), (pytorch_graph_breaks.__file__, 6)]
    assert users_line(frames) == ("mine.py", 3)
    assert users_line(frames[1:]) == ("", 0)
