import pytest
from example_profiles import empty_profile, example_profile, moving_profile

from tinytorch.reporting.roofline import find_roofline


def test_the_slowest_groups_come_first_and_are_no_more_than_asked_for():
    shares = [each.share for each in find_roofline(example_profile(), 99).found]
    assert shares == sorted(shares, reverse=True)
    assert len(find_roofline(example_profile(), 1).found) == 1


def test_home_is_the_level_that_holds_what_a_call_touches():
    found = find_roofline(example_profile(), 6)
    assert found.home.level == "DRAM"
    assert found.working_set_bytes == 1680
    assert found.ridge == pytest.approx(1e6 / 1e5)


def test_the_rate_of_a_group_is_its_share_of_the_peak():
    found = find_roofline(example_profile(), 1)
    (slowest,) = found.found
    assert found.reached(slowest) == pytest.approx(4000 / 0.004)  # two layers of 2,000 FLOP


@pytest.mark.parametrize(
    "profile", [example_profile(ceilings=None), empty_profile(), moving_profile()]
)
def test_without_ceilings_or_flops_there_is_none(profile):
    assert find_roofline(profile, 6) is None


def test_the_explanation_uses_the_words_of_the_picture():
    text = " ".join(find_roofline(example_profile(), 6).explanation(ridge_mark="^", point="dot"))
    assert "Left of ^ (10 FLOP per byte) moving bytes is the limit" in text
    assert "The further a dot is below the line" in text
    assert "Dotted, from left: L1 1.00 MB/s." in text
    assert "What is above the line" in text
