"""Models that take exactly as long as they say, by a clock that only they move."""

import copy
from typing import Any

from tinytorch.models.zoo import load_zoo


class ScriptedClock:
    """The time of all scripted models; copies of a model share it."""

    now = 0.0

    @classmethod
    def read(cls) -> float:
        return cls.now

    @classmethod
    def time(cls, function: Any, loops: int) -> float:
        """Give the seconds of some calls, as clocks of the package do."""
        before = cls.now
        for _ in range(loops):
            function()
        return cls.now - before


class ScriptedModel:
    """The zoo's MLP, or another network, whose every call takes `seconds`."""

    def __init__(self, seconds: float, network: Any = None) -> None:
        self.seconds = seconds
        self.network = load_zoo("mlp").model if network is None else network

    def forward(self, inputs: Any) -> Any:
        ScriptedClock.now += self.seconds
        return self.network(inputs)


class NotCopied(ScriptedModel):
    """One that refuses to be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise copy.Error("there is only one of me")
