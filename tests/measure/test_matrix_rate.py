import pytest

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings_cpu import best_matrix_rate


class Machine:
    """A machine that multiplies with a given rate at each size; also its clock."""

    name, resolution_s, is_disturbed_by_host = "imaginary", 1e-9, False

    def __init__(self, rates, setting_up_s=0.0):
        self.rates, self.tried, self.setting_up_s = rates, [], setting_up_s

    def product_at(self, size):
        self.tried.append(size)
        return lambda: size

    def time(self, function, loops):
        size = function()
        setting_up_s, self.setting_up_s = self.setting_up_s, 0.0
        return setting_up_s + loops * 2 * size**3 / self.rates[size]


def measure(machine, budget_s=1.0, sizes=(256, 512, 1024)):
    return best_matrix_rate(
        "imaginary", machine.product_at, sizes=sizes, budget_s=budget_s, clock=machine
    )


def test_the_size_with_the_highest_rate_is_measured():
    samples = measure(Machine({256: 1e9, 512: 9e9, 1024: 5e9}))
    assert samples.median == pytest.approx(9e9)
    assert samples.unit == "FLOP/s"
    assert samples.name == "imaginary matrix product, n=512"
    assert samples.count >= 5


def test_of_sizes_alike_the_larger_is_taken():
    assert "n=1024" in measure(Machine({256: 5e10, 512: 5.1e10, 1024: 5.05e10})).name


def test_a_size_that_would_take_too_long_is_not_tried():
    machine = Machine({256: 1e9, 512: 1e9, 1024: 1e9})  # 0.03 s, 0.27 s, 2.1 s
    measure(machine, budget_s=1.0)
    assert 1024 not in machine.tried


def test_loading_a_library_in_the_first_call_says_nothing_about_larger_sizes():
    machine = Machine({256: 1e12, 512: 2e12, 1024: 3e12}, setting_up_s=5.0)
    assert "n=1024" in measure(machine).name


def test_the_first_size_is_always_tried():
    assert measure(Machine({4096: 1e6}), sizes=(4096,)).median == pytest.approx(1e6)


def test_no_sizes_are_refused():
    with pytest.raises(SettingError, match="no sizes"):
        measure(Machine({}), sizes=())
