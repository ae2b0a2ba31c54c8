from hypothesis import given
from hypothesis import strategies as st

from tinytorch.models.records import Ledger


class Clock:
    """A clock that moves by one whenever somebody looks."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return float(self.now)


def books():
    return Ledger(Clock())


def test_a_buffer_lives_from_its_entry_to_its_removal():
    ledger = books()
    ledger.add("a", 100, "layer", "forward")
    assert ledger.holds("a")
    ledger.remove("a")
    assert not ledger.holds("a")
    (buffer,) = ledger.allocations()
    assert (buffer.nbytes, buffer.path, buffer.phase) == (100, "layer", "forward")
    assert (buffer.born, buffer.died) == (1.0, 2.0)


def test_what_is_never_freed_has_no_end():
    ledger = books()
    ledger.add("a", 100, None, "forward")
    assert ledger.allocations()[0].died is None


def test_a_key_may_be_used_again_once_its_buffer_is_dead():
    ledger = books()
    ledger.add("a", 100, "first", "forward")
    ledger.remove("a")
    ledger.add("a", 30, "second", "backward")
    first, second = ledger.allocations()
    assert (first.nbytes, second.nbytes) == (100, 30)
    assert first.died < second.born
    assert second.died is None


def test_what_is_there_before_has_a_category_and_no_beginning():
    ledger = books()
    ledger.add_resident("w", 100, "parameters", "layer")
    ledger.add_resident("w", 999, "buffers", "other")  # tied weights count once
    (buffer,) = ledger.allocations()
    assert (buffer.nbytes, buffer.category, buffer.path) == (100, "parameters", "layer")
    assert (buffer.born, buffer.phase) == (0.0, "resident")


def test_buffers_without_a_name_are_called_by_the_phase_that_made_them():
    ledger = books()
    for phase in ("forward", "backward", "update"):
        ledger.add(phase, 1, None, phase)
    made = {buffer.phase: buffer.category for buffer in ledger.allocations()}
    assert made == {"forward": "activations", "backward": "temporaries", "update": "temporaries"}


def test_a_name_is_given_once_and_only_to_the_living():
    ledger = books()
    ledger.add_resident("w", 1, "parameters", None)
    ledger.add("kept", 1, None, "backward")
    ledger.add("dead", 1, None, "backward")
    ledger.remove("dead")
    for key in ("w", "kept", "dead", "never seen"):
        ledger.name(key, "gradients")
    categories = [buffer.category for buffer in ledger.allocations()]
    assert categories == ["parameters", "gradients", "temporaries"]


def test_removing_what_is_not_there_changes_nothing():
    ledger = books()
    ledger.remove("a")
    assert ledger.allocations() == ()


def test_a_buffer_of_another_size_is_another_buffer_of_the_same_layer():
    ledger = books()
    ledger.add("a", 0, "layer", "forward")
    ledger.resize("a", 100)
    ledger.resize("a", 100)
    empty, full = ledger.allocations()
    assert (empty.nbytes, full.nbytes) == (0, 100)
    assert empty.died < full.born
    assert (full.path, full.phase, full.died) == ("layer", "forward", None)


def test_an_input_that_is_a_slice_keeps_the_size_of_the_slice():
    ledger = books()
    ledger.add_resident("x", 10, "inputs", None)
    ledger.resize("x", 1000)
    assert [buffer.nbytes for buffer in ledger.allocations()] == [10]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 100)), max_size=40))
def test_the_books_agree_with_a_dictionary_of_what_is_alive(events):
    ledger, alive = books(), {}
    for key, is_birth, nbytes in events:
        if is_birth and key not in alive:
            ledger.add(key, nbytes, None, "forward")
            alive[key] = nbytes
        elif not is_birth:
            ledger.remove(key)
            alive.pop(key, None)
    assert {key for key in "abc" if ledger.holds(key)} == alive.keys()
    living = [buffer.nbytes for buffer in ledger.allocations() if buffer.died is None]
    assert sorted(living) == sorted(alive.values())
