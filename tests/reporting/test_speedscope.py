import json
from itertools import pairwise

import pytest
from example_profiles import example_profile, training_profile

from tinytorch.reporting.profile_export import SCHEMA, speedscope


@pytest.fixture(params=[example_profile, training_profile], ids=["inference", "training"])
def profile(request):
    return request.param()


def names(file, stack):
    return [file["shared"]["frames"][number]["name"] for number in stack]


def test_it_is_json_of_the_schema(profile):
    file = speedscope(profile)
    assert file["$schema"] == SCHEMA
    assert json.loads(json.dumps(file, allow_nan=False)) == file


def test_events_are_in_order_and_every_open_one_closes(profile):
    evented = speedscope(profile)["profiles"][0]
    assert (evented["type"], evented["unit"]) == ("evented", "seconds")
    assert all(before["at"] <= after["at"] for before, after in pairwise(evented["events"]))
    opened = []
    for event in evented["events"]:
        if event["type"] == "O":
            opened.append(event["frame"])
        else:
            assert opened.pop() == event["frame"]
    assert opened == []
    assert evented["startValue"] <= evented["events"][0]["at"]
    assert evented["events"][-1]["at"] <= evented["endValue"]


def test_the_time_is_that_of_a_watched_call():
    evented = speedscope(example_profile())["profiles"][0]
    assert evented["endValue"] == pytest.approx(0.010)


def test_frames_are_used_by_their_number(profile):
    file = speedscope(profile)
    used = {event["frame"] for event in file["profiles"][0]["events"]}
    used |= {
        number for each in file["profiles"][1:] for stack in each["samples"] for number in stack
    }
    assert used == set(range(len(file["shared"]["frames"])))


def test_macs_stand_where_they_were_done(profile):
    file = speedscope(profile)
    macs = file["profiles"][1]
    assert sum(macs["weights"]) == macs["endValue"] == profile.macs
    assert names(file, macs["samples"][0]) == [
        "forward",
        "Net",
        "blocks.0",
        "blocks.0.fc",
        "linear",
    ]


def test_bytes_at_the_peak_stand_with_who_holds_them(profile):
    file = speedscope(profile)
    held = file["profiles"][2]
    assert (held["unit"], sum(held["weights"])) == ("bytes", profile.memory.peak_bytes)
    assert names(file, held["samples"][0])[0] == "parameters"
    assert len(held["samples"]) == len(held["weights"])


def test_the_first_profile_is_shown_first(profile):
    assert speedscope(profile)["activeProfileIndex"] == 0
