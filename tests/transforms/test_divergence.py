import json

import pytest

from tinytorch.transforms.static_generation import Divergence


@pytest.mark.parametrize(
    ("gap", "noise", "expected"),
    [
        (0.0, 0.0, True),
        (0.02, 0.01, True),
        (-0.02, 0.01, True),
        (0.021, 0.01, False),
        (-0.5, 0.01, False),
        (float("nan"), 0.01, False),
        (0.1, float("nan"), False),
    ],
)
def test_rounding_is_a_gap_within_the_noise_of_both_scores(gap, noise, expected):
    assert Divergence(0, 3, 5, 7, gap, noise).is_rounding is expected


def test_what_follows_must_be_the_models_own_text_too():
    strayed = Divergence(0, 3, 5, 7, 0.0, 0.01, strays_at=9)
    assert not strayed.is_rounding
    assert str(strayed).endswith("new token 9 is none that it would write: a real difference")


def test_it_says_what_differs_and_whether_that_matters():
    said = str(Divergence(sequence=1, place=3, expected=5, found=7, gap=0.01, noise=0.02))
    assert "sequence 1 differs from new token 3 on (7 instead of 5)" in said
    assert said.endswith("no more than rounding")
    assert str(Divergence(1, 3, 5, 7, 1.0, 0.02)).endswith("a real difference")


def test_it_goes_into_json():
    written = json.loads(json.dumps(Divergence(1, 3, 5, 7, 1.0, 0.02).to_dict()))
    assert written == {
        "sequence": 1, "place": 3, "expected": 5, "found": 7, "gap": 1.0, "noise": 0.02,
        "strays_at": None, "is_rounding": False,
    }  # fmt: skip
