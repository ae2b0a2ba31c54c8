import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.transforms.support.channels import Labels


def test_labels_are_new_each_time():
    labels = Labels()
    assert set(labels.fresh(3).tolist()).isdisjoint(labels.fresh(4).tolist())


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_ties_are_an_equivalence(pairs):
    labels = Labels()
    known = labels.fresh(12)
    for one, other in pairs:
        labels.tie(known[[one]], known[[other]], "")
    groups = [{number} for number in range(12)]  # the slow and obvious way
    for one, other in pairs:
        merged = groups[one] | groups[other]
        for number in merged:
            groups[number] = merged
    roots = labels.roots(known).tolist()
    for one in range(12):
        for other in range(12):
            assert (roots[one] == roots[other]) is (other in groups[one])


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12), st.integers(0, 7))
def test_a_reason_holds_for_all_that_are_tied_before_and_after(pairs, frozen):
    labels = Labels()
    known = labels.fresh(8)
    half = len(pairs) // 2
    for one, other in pairs[:half]:
        labels.tie(known[[one]], known[[other]], "")
    labels.freeze(known[[frozen]], "stays")
    for one, other in pairs[half:]:
        labels.tie(known[[one]], known[[other]], "")
    root = labels.find(frozen)
    for number in range(8):
        assert labels.reason(number) == ("stays" if labels.find(number) == root else "")


def test_an_axis_without_labels_lets_nothing_go():
    labels = Labels()
    known = labels.fresh(2)
    assert labels.tie(None, known, "fixed") is known
    assert labels.tie(None, None, "fixed") is None
    assert [labels.reason(label) for label in known.tolist()] == ["fixed", "fixed"]


def test_what_is_tied_together_is_one():
    labels = Labels()
    grid = labels.fresh(6).reshape(2, 3)
    assert labels.tie_together(grid) == grid[0, 0]
    assert len(set(labels.roots(grid.reshape(-1)).tolist())) == 1
    assert labels.tie_together(np.array([grid[0, 0]])) == grid[0, 0]
