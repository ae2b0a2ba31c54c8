"""The three events."""

import pytest

from tinytorch.competition.events import EVENTS, find_event
from tinytorch.errors import SettingError
from tinytorch.models.zoo import ZOO


def test_each_event_has_a_model_of_the_zoo():
    assert {event.model for event in EVENTS.values()} == set(ZOO)


def test_the_decathlon_has_ten_disciplines():
    assert len(find_event("transformer_decathlon").scored) == 10


def test_the_others_are_about_one_thing():
    for name in ("mlp_sprint", "cnn_marathon"):
        event = find_event(name)
        assert len(event.scored) == 1
        assert "peak memory" in {each.name for each in event.measures}


def test_requests_are_whole():
    assert all(event.examples % event.batch == 0 for event in EVENTS.values())


def test_an_unknown_event_is_named_with_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'mlp_sprint'"):
        find_event("mlp_sprnt")


def test_ten_heats_have_enough_images_for_the_sharper_tier():
    for name in ("mlp_sprint", "cnn_marathon"):
        assert 10 * find_event(name).examples >= 20_000
