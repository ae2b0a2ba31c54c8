import pytest

from tinytorch.errors import SettingError
from tinytorch.transforms.support.observing import checked_patterns, idle_patterns, why_kept


@pytest.mark.parametrize(
    ("path", "pattern"),
    [("head", "head"), ("blocks.0.mlp", "blocks.0"), ("blocks.0.mlp", "*.mlp"), ("a.b.c", "a")],
)
def test_a_pattern_means_a_layer_or_what_it_is_a_part_of(path, pattern):
    assert why_kept(path, ("other", pattern)) == f"kept by keep={pattern!r}"


@pytest.mark.parametrize(("path", "pattern"), [("blocks.01", "blocks.0"), ("head", "he")])
def test_the_beginning_of_a_name_is_not_the_name(path, pattern):
    assert why_kept(path, (pattern,)) == ""


def test_patterns_without_a_layer_are_noted():
    assert idle_patterns(("laers", "a"), ["a.b"], change="quantized") == (
        "keep='laers' matches no layer that can be quantized",
    )


def test_a_single_text_is_not_taken_for_a_list_of_letters():
    assert checked_patterns(["a", "b"]) == ("a", "b")
    with pytest.raises(SettingError, match=r"keep=\('head',\)"):
        checked_patterns("head")
