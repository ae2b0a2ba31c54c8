"""Trials that try nothing, for tests of the search: the times are in a table."""

import math

from example_comparisons import comparison
from example_optimizations import attempt as example
from example_profiles import example_profile

from tinytorch.measure.samples import Samples
from tinytorch.transforms.plan import GOALS
from tinytorch.tuning.attempt import BETTER, FAILED, INACCURATE, WORSE, Settings
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.trying import Built

ENTRIES = {
    name: Entry(name, (), role, place, "exact", frozenset(GOALS), "")
    for name, role, place in (
        ("int8", "numbers", 4),
        ("half", "numbers", 4),
        ("compiled", "kernels", 9),
        ("threads", "threads", 7),
        ("broken", "layout", 5),
        ("channels", "layout", 5),
    )
}
SPEEDS = {
    ("int8",): 0.5,
    ("half",): 0.55,
    ("compiled",): 0.8,
    ("threads",): 1.3,
    ("int8", "compiled"): 0.6,
    ("half", "compiled"): 0.4,
    ("threads", "compiled"): 0.7,
}


class ImaginaryTrials:
    """Gives what the table says, as if it had been measured."""

    workload = profile = None
    check_s, start_s = 0.0, math.inf

    def __init__(self, speeds=SPEEDS, **settings):
        self.speeds, self.settings, self.notes = speeds, Settings(**settings), []
        self.seen, self.confirmed, self.again = [], [], {}
        self.unjudged, self.inaccurate = "", ()

    def can_judge(self, entries):
        return self.unjudged not in [each.name for each in entries]

    def build(self, entries):
        return Built(tuple(each.name for each in entries), object(), ())

    def model_of(self, built):
        return built.model

    def attempt(self, entries, *, best=None, **_):
        stack = tuple(each.name for each in entries)
        self.seen.append(stack)
        if stack not in self.speeds:
            return example(*stack, outcome=FAILED, reason="it broke"), None
        if stack in self.inaccurate:
            return example(*stack, outcome=INACCURATE, reason="it is off"), None
        time = self.speeds[stack]
        against = best and comparison(
            time / self.speeds[best.stack], baseline_name=" + ".join(best.stack)
        )
        outcome = BETTER if time < 1 else WORSE
        found = example(*stack, outcome=outcome, time=time, against_best=against)
        return found, Built(stack, object(), ())

    def compare_with(self, first, second, **_):
        return comparison(self.speeds[second.stack] / self.speeds[first.stack])

    def confirm(self, entries, built=None, *, seed, budget_s, is_fresh, **_):
        stack = tuple(each.name for each in entries)
        self.was_fresh = is_fresh
        self.confirmation_s = budget_s
        self.confirmed.append((stack, seed))
        time = self.again.get(stack, self.speeds[stack])
        outcome = BETTER if time < 1 else WORSE
        return example(*stack, outcome=outcome, time=time), built or Built(stack, object(), ())


def waiting_profile(idle_share):
    """Give a profile of a device that waits in this part of a call; None is for a processor."""
    if idle_share is None:
        return example_profile()
    busy = Samples("busy", (0.010 * (1 - idle_share),) * 4)
    return example_profile(latency=Samples("latency", (0.010,) * 4), busy=busy)
