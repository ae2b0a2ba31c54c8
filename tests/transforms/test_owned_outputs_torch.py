from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass

import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.transforms.support.torch import FEW, OutputTemplate, owned

Pair = namedtuple("Pair", "one other")


class Cache:
    def __init__(self, *tensors):
        self.layers = list(tensors)
        self.config = Config()


class Config:
    words = ("a", "b")


@dataclass(frozen=True)
class Result:
    logits: object
    cache: object = None


@dataclass(slots=True)
class Slotted:
    logits: object


class Half:
    __slots__ = ("one",)


class Other(Half):
    """Has slots, and other attributes."""

    def __init__(self, one, other):
        self.one, self.other = one, other


class Named(dict):
    """A dictionary with attributes."""

    def __init__(self, items, hidden):
        super().__init__(items)
        self.hidden = hidden


def ones():
    return torch.ones(2)


@pytest.mark.parametrize(
    ("make", "tensors"),
    [
        (ones, lambda output: [output]),
        (lambda: (ones(), [ones(), 3]), lambda output: [output[0], output[1][0]]),
        (lambda: Pair(ones(), None), lambda output: [output.one]),
        (lambda: OrderedDict(a=ones()), lambda output: [output["a"]]),
        (lambda: Result(ones(), Cache(ones())), lambda o: [o.logits, *o.cache.layers]),
        (lambda: [ones() for _ in range(FEW + 2)], list),
        (lambda: Slotted(ones()), lambda output: [output.logits]),
        (lambda: Other(ones(), ones()), lambda output: [output.one, output.other]),
        (lambda: Named({"a": ones()}, ones()), lambda output: [output["a"], output.hidden]),
        (lambda: deque([ones()], maxlen=3), list),
    ],
    ids=[
        "tensor",
        "nested",
        "named",
        "ordered",
        "objects",
        "many",
        "slots",
        "both",
        "dictionary",
        "queue",
    ],
)
def test_every_tensor_gets_memory_of_its_own(make, tensors):
    output = make()
    copied = owned(output)
    for tensor in tensors(output):
        tensor.zero_()
    assert type(copied) is type(output)
    assert all(each.tolist() == [1, 1] for each in tensors(copied))


@pytest.mark.skipif(not hasattr(torch, "_foreach_copy_"), reason="needs a torch that has it")
def test_many_tensors_are_copied_without_gradients_as_one():
    output = [ones() for _ in range(FEW + 2)]
    with torch.no_grad():
        copied = owned(output)
    output[-1].zero_()
    assert copied[-1].tolist() == [1, 1]


def test_what_holds_no_tensors_is_shared():
    output = Result(ones(), Cache(ones()))
    copied = owned(output)
    assert copied.cache is not output.cache
    assert copied.cache.config is output.cache.config


def test_a_tensor_in_two_places_stays_one():
    shared = ones()
    first, second = owned((shared, {"again": shared}))
    assert first is second["again"]


def test_circles_are_followed_once():
    cache = Cache(ones())
    cache.self = cache
    copied = owned(cache)
    assert copied.self is copied is not cache


def test_gradients_flow_through_a_copy():
    x = ones().requires_grad_()
    owned((x * 2,))[0].sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_template_is_copied_as_often_as_needed():
    output = {"x": ones()}
    template = OutputTemplate(output)
    first = template.copied()
    output["x"].fill_(7)
    assert (first["x"].tolist(), template.copied()["x"].tolist()) == ([1, 1], [7, 7])


def test_the_outputs_of_transformers_are_copied_with_their_cache():
    from tiny_transformers import tiny

    workload = tiny("gpt2")
    with torch.no_grad():
        output = workload.model.eval()(*workload.inputs, use_cache=True)
        expected = output.past_key_values.layers[0].keys.clone()
        copied = owned(output)
        output.past_key_values.layers[0].keys.zero_()
    assert type(copied) is type(output)
    assert torch.equal(copied.past_key_values.layers[0].keys, expected)
    assert torch.equal(copied.logits, output.logits)
