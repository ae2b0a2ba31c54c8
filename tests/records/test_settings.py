import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.records.settings import GateSettings, parse_share, read_gate_settings


def written(folder, text):
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return folder


@given(st.floats(0, 99.9))
def test_percent_and_shares_read_alike(percent):
    assert parse_share(f"{percent!r}%") == pytest.approx(parse_share(percent / 100))


@pytest.mark.parametrize("text", ["5", "100%", "-1%", "x", "", "nan", "%", "1e400"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(SettingError, match=r"no share below 1; give 0.05 or '5%'"):
        parse_share(text)


def test_a_whole_number_is_taken_for_percent_in_the_advice_only():
    with pytest.raises(SettingError, match="5 percent is '5%'"):
        parse_share("5")


def test_without_a_file_there_are_defaults(tmp_path):
    assert read_gate_settings(tmp_path, top=tmp_path) == GateSettings()


def test_everything_can_be_written_down(tmp_path):
    text = """
        [tool.tinytorch.gate]
        targets = ["bench.py:make", "pkg.bench:other"]
        tolerance = "3%"
        budget_s = 5
        margin = 0.02
        setup = "make"
        python = ".venv/bin/python"
        timeout_s = 60.0
    """
    assert read_gate_settings(written(tmp_path, text)) == GateSettings(
        ("bench.py:make", "pkg.bench:other"), 0.03, 5.0, 0.02, "make", ".venv/bin/python", 60.0
    )


def test_the_nearest_file_counts_but_none_above_the_top(tmp_path):
    written(tmp_path, '[tool.tinytorch.gate]\ntargets = ["above:it"]')
    inner = tmp_path / "repository" / "part"
    inner.mkdir(parents=True)
    assert read_gate_settings(inner).targets == ("above:it",)
    assert read_gate_settings(inner, top=inner.parent).targets == ()
    written(inner, "[project]\nname = 'part'")
    assert read_gate_settings(inner).targets == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tolerence = 0.1", "no setting 'tolerence'; did you mean 'tolerance'"),
        ("zzz = 1", "there are targets, tolerance, budget_s"),
        ("targets = 'bench.py:make'", "GateSettings.targets: expected a list"),
        ("targets = [1]", r"targets\[0\]: expected text, got 1"),
        ("budget_s = true", "budget_s: expected a number, got True"),
        ("setup = 3", "setup: expected text, got 3"),
        ("tolerance = '7'", "7 percent is '7%'"),
        ("tolerance = 0.001", "below 0.5%"),
        ("tolerance = 5", "5% is 0.05"),
        ("margin = -1", "margin=-1"),
        ("budget_s = 0", "budget_s=0; it must be a number above 0"),
        ("timeout_s = inf", "timeout_s=inf"),
        ("=", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, lines, message):
    with pytest.raises(SettingError, match=message):
        read_gate_settings(written(tmp_path, f"[tool.tinytorch.gate]\n{lines}"))


def test_a_table_must_be_a_table(tmp_path):
    with pytest.raises(SettingError, match="is no table"):
        read_gate_settings(written(tmp_path, "[tool.tinytorch]\ngate = 3"))


def test_what_the_command_line_leaves_out_stays():
    settings = GateSettings(("a:b",), 0.1).changed(tolerance=0.2, margin=None)
    assert settings == GateSettings(("a:b",), 0.2)
