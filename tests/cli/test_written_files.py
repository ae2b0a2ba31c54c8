import os

import pytest

from tinytorch.cli import options as written_files
from tinytorch.cli.console import Output
from tinytorch.cli.options import check_writable, write_file
from tinytorch.errors import SettingError

OUTPUT = Output("probe")


def test_trying_a_path_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_rather_a_mistake_than_a_wish(tmp_path):
    with pytest.raises(SettingError, match="there is no folder"):
        check_writable(tmp_path / "deep" / "trace.json")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(SettingError, match="is a folder"):
        check_writable(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SettingError, match="Permission denied"):
        check_writable(tmp_path / "trace.json")


def test_a_file_is_written_and_said(tmp_path, capsys):
    file = tmp_path / "page.html"
    write_file(file, "größer\n", OUTPUT)
    assert file.read_text("utf-8") == "größer\n"
    assert capsys.readouterr().err == f"wrote {file}\n"


def test_a_full_disk_is_a_sentence_and_the_old_file_stays(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("old", "utf-8")

    def fails(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written_files, "write_atomically", fails)
    with pytest.raises(SettingError, match=r"page\.html cannot be written: No space left"):
        write_file(file, "new", OUTPUT)
    assert file.read_text("utf-8") == "old"
