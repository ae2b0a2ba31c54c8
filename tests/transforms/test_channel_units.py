import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.transforms.support.channels import Units


def test_roots_are_units_of_their_own_at_first():
    assert Units(3).numbers() == [0, 1, 2]


def test_roots_with_an_index_in_common_go_together():
    units = Units(4)
    units.join_equal([(0, 0), (0, 2), (5, 1), (5, 3)])
    assert units.numbers() == [0, 1, 0, 1]


@pytest.mark.parametrize("is_input", [True, False])
def test_the_same_positions_of_all_blocks_go_together(is_input):
    units = Units(6)
    pairs = [(index, index) for index in range(6)]
    found = units.join_blocks(pairs, (3, is_input))
    assert units.numbers() == [0, 1, 2, 0, 1, 2]
    assert found == ([(index % 3, index) for index in range(6)] if is_input else pairs)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_units_are_the_connected_parts(pairs):
    units = Units(10)
    units.join_equal(pairs)
    numbers = units.numbers()
    first = {}
    for index, root in pairs:
        assert numbers[first.setdefault(index, root)] == numbers[root]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    # as many units as there are parts: each join takes away at most one
    joins = sum(first[index] != root for index, root in pairs)
    assert len(set(numbers)) >= 10 - joins
