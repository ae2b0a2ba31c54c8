from tinytorch import __version__
from tinytorch.measure.environment import describe_environment
from tinytorch.reporting.html.page import NAMES, appendix
from tinytorch.reporting.quantities import bytes_text


def test_an_environment_is_shown_with_units():
    environment = describe_environment()
    body = appendix(environment).body
    assert bytes_text(environment.memory_bytes) in body
    assert environment.python in body
    assert f"tinytorch {__version__}" in body


def test_every_field_of_an_environment_has_a_name():
    assert set(describe_environment().to_dict()) == set(NAMES)


def test_fields_of_other_tools_are_shown_under_their_own_name():
    body = appendix({"cpu_model": "x", "devices": {"cuda:0": {"clock_mhz": 1.5}, "b": None}}).body
    assert '<th scope="row">devices</th><td>cuda:0 clock_mhz 1.5, b -</td>' in body


def test_caches_memory_and_commit_are_words():
    fields = {
        "caches": {"L1d": {"one_bytes": 32768, "total_bytes": 65536}},
        "steal_share": 0.012,
        "frequency_mhz": 2596.1,
        "commit": {"hash": "0123456789abcdef", "is_dirty": True},
        "governor": None,
        "threads": {},
        "instruction_sets": ["avx", "fma"],
    }
    body = appendix(fields).body
    for words in (
        "L1d 2 x 32 KiB",
        "1.2%",
        "2,596 MHz",
        "0123456789ab and changes",
        '<th scope="row">frequency governor</th><td>-</td>',
        "avx, fma",
    ):
        assert words in body


def test_what_was_not_kept_is_said():
    assert "was not kept" in appendix(None).body
    assert "was not kept" not in appendix({"python": "3"}).body


def test_the_button_is_there_only_where_there_is_something_to_save():
    assert "data-save" not in appendix(None).body
    body = appendix(None, ["a < b"], {"a": 1}, file_name="gpt.json").body
    assert 'data-save="raw" data-file="gpt.json"' in body
    assert "<li>a &lt; b</li>" in body
