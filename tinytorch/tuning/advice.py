"""Advice: what a profile suggests, with the evidence, before anything is tried."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tinytorch.codec import Coded
from tinytorch.measure.estimate import Estimate
from tinytorch.transforms.plan import Gain

NEAR = 4 / 3
"""A gain, as a logarithm, that differs by no more than this factor is as predicted."""


@dataclass(frozen=True)
class Advice(Coded):
    """One suggestion. `entry` names what does it in the catalog; "" where nothing here does.

    `evidence` are sentences with numbers of the profile: layers, shares, bounds, sizes. `predicted`
    is how many times faster the whole call becomes, within what Amdahl's law and the roofline
    allow; where it is unknown, it is None and `not_predicted` has the reason. `share` is the part
    of the time that it is about.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    entry: str = ""
    predicted: Gain | None = None
    not_predicted: str = ""
    risk: str = ""
    cost: str = ""
    share: float | None = None

    def agreement(self, measured: Estimate) -> str:
        """Return how a measured speedup compares with the prediction; "" without one.

        As predicted is what has the predicted value in its interval, or a gain of about its size,
        unless all of the interval lies beyond what was held possible.
        """
        predicted = self.predicted
        if predicted is None:
            return ""
        gains = math.log(measured.value), math.log(predicted.value)
        is_near = 1 / NEAR <= gains[0] / gains[1] <= NEAR if gains[1] else False
        is_possible = measured.high >= predicted.low and measured.low <= predicted.high
        if (is_near and is_possible) or measured.low <= predicted.value <= measured.high:
            return "as predicted"
        how = "less" if measured.value < predicted.value else "more"
        return f"{how} than predicted" + (", within what is possible" if is_possible else "")


# ---------------------------------------------------------------- large numbers in the sentences
# of advice: three digits that count, never a power of ten


suggest = partial(Advice, "")
"""Make the advice of a rule, which has the name that the table of rules gives it."""


def millions(value: float) -> str:
    """Write how many millions.

    >>> millions(1_320_000_000), millions(437_000)
    ('1,320', '0.437')
    """
    return _scaled(value / 1e6)


def billions(value: float) -> str:
    """Write how many billions.

    >>> billions(201.3e9)
    '201'
    """
    return _scaled(value / 1e9)


def _scaled(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"
