"""What a judge has seen."""

from example_legs import SPRINT, an_entry, legs

from tinytorch.competition.heats import Seen


def test_the_entry_is_the_second_side():
    heats = legs(count=3)
    assert Seen(SPRINT, an_entry(), heats, None).entries == [second for _, second in heats]
