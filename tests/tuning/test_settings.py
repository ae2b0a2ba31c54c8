import pytest

from tinytorch.errors import SettingError
from tinytorch.tuning.settings import Settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": "speed"}, "goal='speed'; there are latency, throughput, memory, size"),
        ({"max_accuracy_drop": -1}, "max_accuracy_drop=-1; it must be zero or a positive number"),
        ({"max_output_error": float("nan")}, "max_output_error=nan"),
        ({"budget_s": 0}, "budget_s=0; trying things needs some seconds"),
        ({"seed": -1}, "seed=-1"),
        ({"limits": {"time": 1}}, "no limit is called 'time'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, words):
    with pytest.raises(SettingError, match=words):
        Settings(**changes)


def test_limits_are_numbers():
    assert Settings(limits={"size_mb": 1}).limits == {"size_mb": 1.0}
