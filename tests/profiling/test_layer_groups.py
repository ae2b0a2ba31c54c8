import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.profiling.layers import LayerGroup, group_layers


def names(paths):
    return [group.name for group in group_layers(paths)]


def test_layers_that_differ_in_a_number_share_a_name():
    paths = [f"blocks.{block}.{part}" for block in range(4) for part in ("q", "mlp.0", "mlp.2")]
    assert names(paths) == ["blocks.{0..3}.q", "blocks.{0..3}.mlp.{0,2}"]


def test_a_group_keeps_its_layers_in_their_order():
    (group,) = group_layers(["h.2", "h.0", "h.1"])
    assert group == LayerGroup("h.{0..2}", ("h.2", "h.0", "h.1"))
    assert len(group) == 3


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ([0], "h.0"),
        ([0, 1], "h.{0,1}"),
        ([0, 1, 3], "h.{0,1,3}"),
        ([9, 10, 11], "h.{9..11}"),
        ([0, 1, 2, 3, 7], "h.{0..3,7}"),
        (range(0, 60, 3), "h.{0,3,6,...,57}"),
    ],
)
def test_numbers_are_written_as_runs(numbers, name):
    assert names([f"h.{number}" for number in numbers]) == [name]


def test_only_whole_parts_of_a_path_are_numbers():
    assert names(["norm1", "norm2"]) == ["norm1", "norm2"]
    assert names(["h.01", "h.1"]) == ["h.01", "h.1"]
    assert names(["h.²", "h.³"]) == ["h.²", "h.³"]


def test_what_is_missing_in_one_block_is_not_claimed():
    paths = ["h.0.a.0", "h.0.a.1", "h.1.a.0"]
    assert names(paths) == ["h.{0,1}.a.0", "h.0.a.1"]


def test_the_model_itself_and_containers_stay_apart():
    assert names(["", "h.0", "h.0.q", "h.1", "h.1.q"]) == ["", "h.{0,1}", "h.{0,1}.q"]
    assert group_layers([]) == ()


def expanded(name):
    """Give what a shell would make of a name with lists in braces."""
    choices = []
    for part in name.replace("..", "~").split("."):
        pieces = part.strip("{}").split(",")
        ends = [piece.split("~") for piece in pieces]
        choices.append([str(n) for e in ends for n in range(int(e[0]), int(e[-1]) + 1)])
    return {".".join(each) for each in itertools.product(*choices)}


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_a_name_expands_to_exactly_its_layers(pairs):
    paths = [f"{first}.{second}" for first, second in pairs]
    groups = group_layers(paths)
    assert all(expanded(group.name) == set(group.paths) for group in groups)
    assert sorted(path for group in groups for path in group.paths) == sorted(paths)
