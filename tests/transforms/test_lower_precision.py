import pytest

from tinytorch.errors import SettingError
from tinytorch.transforms import lower_precision
from tinytorch.transforms.lower_precision import LowerPrecision, why_slow_on_processor


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8'; there are bfloat16, float16"),
        ({"how": "half"}, "unknown how 'half'; there are convert, layers"),
        ({"keep": "head"}, "keep is a tuple of patterns"),
        ({"tolerance": -0.1}, "tolerance=-0.1; "),
        ({"tolerance": float("nan")}, "tolerance=nan; "),
        ({"tolerance": True}, "tolerance=True; "),
    ],
)
def test_wrong_settings_are_errors(settings, words):
    with pytest.raises(SettingError, match=words):
        LowerPrecision(**settings)


def test_the_tolerance_has_a_default():
    assert LowerPrecision().allowed_error == 5e-2
    assert LowerPrecision(tolerance=1e-3).allowed_error == 1e-3


@pytest.mark.parametrize(
    ("dtype", "sets", "words"),
    [
        ("bfloat16", ("avx2", "avx512_bf16"), ""),
        ("bfloat16", ("avx2", "avx512f"), "no instructions that multiply bfloat16"),
        ("float16", ("asimd", "asimdhp"), ""),
        ("float16", ("avx512_bf16",), "no instructions that multiply float16"),
        ("float16", (), "are unknown"),
    ],
)
def test_a_processor_without_instructions_is_named(dtype, sets, words, monkeypatch):
    monkeypatch.setattr(lower_precision, "instruction_sets", lambda: sets)
    found = why_slow_on_processor(dtype)
    assert words in found
    assert bool(words) is bool(found)
