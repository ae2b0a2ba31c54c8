import pytest

from tinytorch.errors import SettingError
from tinytorch.transforms.quantize import Quantize


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fast"}, "unknown mode 'fast'; there are weight_only, dynamic, static"),
        ({"bits": 16}, "bits must be 8 or 4"),
        ({"bits": 4}, "mode='weight_only', not 'dynamic'"),
        ({"group_size": 32}, "INT8 has a scale for each output"),
        ({"mode": "weight_only", "bits": 4, "group_size": 12}, "multiple of 8"),
        ({"mode": "weight_only", "bits": 4, "group_size": 0}, "multiple of 8"),
        ({"ranges": "median"}, "unknown ranges 'median'; there are minmax"),
        ({"keep": "head"}, r"keep=\('head',\)"),
        ({"max_error": 0}, "max_error must be above 0"),
        ({"max_error": float("nan")}, "max_error must be above 0"),
    ],
)
def test_what_does_not_go_together_says_so(settings, message):
    with pytest.raises(SettingError, match=message):
        Quantize(**settings)


def test_a_list_of_patterns_is_kept_as_a_tuple():
    assert Quantize(keep=["head"]).to_dict()["keep"] == ("head",)


@pytest.mark.parametrize("settings", [{"keep": None}, {"group_size": "32", "bits": 4}])
def test_settings_of_another_type_say_so(settings):
    with pytest.raises(SettingError, match=r"keep is a tuple|group_size is a number"):
        Quantize("weight_only", **settings)
