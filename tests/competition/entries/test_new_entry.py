"""A new entry can be judged at once, and nothing is overwritten."""

from pathlib import Path

import pytest

from tinytorch.competition import new_entry as module
from tinytorch.competition.entry import EntryError, read_entry
from tinytorch.competition.entry_checks import check_entry
from tinytorch.competition.events import DIVISIONS, EVENTS
from tinytorch.competition.new_entry import new_entry
from tinytorch.errors import SettingError


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("event", EVENTS)
def test_a_new_entry_breaks_no_rule(tmp_path: Path, event: str, division: str) -> None:
    for example in ("techniques", "code"):
        folder = tmp_path / example
        entry = new_entry(folder, event=event, team="Ada", division=division, example=example)
        assert entry == read_entry(folder)
        assert (entry.event, entry.division, entry.tier) == (event, division, 0.99)
        assert check_entry(entry, trust=True, run=False) == ()


def test_without_compiled_kernels_none_are_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    for event in EVENTS:
        entry = new_entry(tmp_path / event, event=event, team="Ada")
        assert "compiled-kernels" not in [each.name for each in entry.techniques]


def test_the_files_are_named(tmp_path: Path) -> None:
    new_entry(tmp_path / "a", event="mlp_sprint", team="Ada")
    new_entry(tmp_path / "b", event="mlp_sprint", team="Ada", example="code")
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == ["README.md", "entry.json"]
    assert sorted(each.name for each in (tmp_path / "b").iterdir()) == [
        "README.md",
        "entry.json",
        "model.py",
    ]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    new_entry(tmp_path / "a", event="mlp_sprint", team="Ada")
    before = (tmp_path / "a" / "entry.json").read_bytes()
    with pytest.raises(EntryError, match=r"holds entry\.json already"):
        new_entry(tmp_path / "a", event="cnn_marathon", team="Eve")
    assert (tmp_path / "a" / "entry.json").read_bytes() == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model.py").symlink_to("nowhere")
    with pytest.raises(EntryError, match=r"holds model\.py already"):
        new_entry(tmp_path / "b", event="mlp_sprint", team="Ada", example="code")
    assert not (tmp_path / "b" / "entry.json").exists()
    (tmp_path / "c").write_text("x")
    with pytest.raises(EntryError, match="is a file"):
        new_entry(tmp_path / "c", event="mlp_sprint", team="Ada")


def test_what_cannot_be_entered_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'mlp_sprint'"):
        new_entry(tmp_path / "a", event="mlp_sprin", team="Ada")
    with pytest.raises(EntryError, match="division is 'clossed'"):
        new_entry(tmp_path / "a", event="mlp_sprint", team="Ada", division="clossed")
    with pytest.raises(SettingError, match="there are techniques and code"):
        new_entry(tmp_path / "a", event="mlp_sprint", team="Ada", example="pickle")  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_a_name_does_not_change_how_the_page_reads(tmp_path: Path) -> None:
    new_entry(tmp_path, event="mlp_sprint", team="<script>|*x*{0}", example="code")
    text = (tmp_path / "README.md").read_text()
    assert r"# MLP Sprint: \<script\>\|\*x\*\{0\}" in text
    assert "tinytorch compete run FOLDER --trust" in text
