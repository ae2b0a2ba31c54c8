import pytest
from example_profiles import example_profile, training_profile

from tinytorch.profiling.profile import describe_hotspot
from tinytorch.reporting.profile_words import hotspot_label


def labels(profile):
    found = (describe_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    return {each.layers: hotspot_label(each) for each in found}


@pytest.mark.parametrize(
    ("layers", "label"),
    [
        (("blocks.0.fc", "blocks.1.fc"), "blocks.*.fc (2x) Linear"),
        (("head",), "head Linear"),
        (("",), "(Net, self)"),
        (("<backward>",), "<backward>"),
        (("<update>",), "<update>"),
    ],
)
def test_a_hotspot_is_called_by_name_number_and_kind(layers, label):
    assert labels(training_profile())[layers] == label


def test_every_hotspot_has_a_label_of_its_own():
    found = labels(example_profile())
    assert len(set(found.values())) == len(example_profile().hotspots)
