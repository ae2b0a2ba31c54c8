"""Profiles that are hard to show: hostile and long names, thousands of layers, a GPU, one call."""

from example_pages import HOSTILE
from example_profiles import (
    CALLS,
    allocations,
    example_profile,
    layer_calls,
    operation,
)

from tinytorch.measure.samples import Samples
from tinytorch.models.records import Recording

QUOTED = 'it\'s a "name" & more'
LONG = "deep." * 40 + "end"


def flat_profile(names, **changes):
    """Give a call of 11 ms in which layers of these names run one after the other."""
    step = 10 / len(names)
    calls = [(name, place * step, (place + 0.9) * step) for place, name in enumerate(names)]
    operations = tuple(
        operation("linear", name, place * step / 1e3, 0.8 * step / 1e3)
        for place, name in enumerate(names)
    )
    return example_profile(
        **{
            "kinds": {"": "Net", **dict.fromkeys(names, "Linear")},
            "runs": (layer_calls([*calls, ("", 0, 10.5)]),) * 4,
            "watched": Samples("watched", (0.011,) * 4),
            "recording": Recording(operations, allocations(), 0.02),
            "parameters": (),
        }
        | changes
    )


def hostile_profile():
    """Give a profile in which everything that has a name has a bad one."""
    names = [HOSTILE, QUOTED, LONG, "</svg>", "</title><b>", "</script>"]
    profile = flat_profile(names, name=HOSTILE)
    kinds = {**profile.kinds, HOSTILE: HOSTILE, "": HOSTILE}
    return flat_profile(names, name=HOSTILE, kinds=kinds, notes=(HOSTILE,))


def wide_profile(count=2000):
    """Give a profile of so many layers that none of them can be seen alone."""
    return flat_profile([f"layer{place}_x" for place in range(count)])


def gpu_profile():
    """Give a profile of a GPU that waits for the program in most of the time."""
    return example_profile(
        device="cuda:0",
        device_time=Samples("device time", (0.008,) * 4),
        busy=Samples("busy", (0.004,) * 4),
    )


def single_call_profile():
    one = Samples("latency", (0.01,))
    return example_profile(latency=one, watched=one, turns=(1,), runs=(layer_calls(CALLS),))
