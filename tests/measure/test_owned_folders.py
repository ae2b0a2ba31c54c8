import os
import subprocess
import sys
import tempfile

import psutil
import pytest

from tinytorch.measure.child_process import (
    is_running,
    is_stale,
    owned_folder,
    remove_stale_folders,
)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_there_for_a_block_only():
    with owned_folder("test") as folder:
        (folder / "file").write_text("text", "utf-8")
        assert folder.name.startswith("tinytorch-test-")
    assert not folder.exists()


def test_only_folders_of_the_dead_are_removed(tmp_path):
    with owned_folder("test") as living:
        dead = tmp_path / living.name.replace(f"-{os.getpid()}-", "-999999999-")
        other = tmp_path / dead.name.replace("-test-", "-other-")
        foreign = tmp_path / f"{living.name}.txt"
        for each in (dead, other, foreign):
            each.mkdir()
        assert remove_stale_folders("test") == (dead,)
        assert living.exists()
        assert other.exists()
        assert foreign.exists()
        assert not dead.exists()


def test_a_number_that_another_process_has_now_is_no_owner():
    with owned_folder("test") as folder:
        assert not is_stale(folder, "test")
        started = folder.name.split("-")[-2]
        earlier = folder.name.replace(started, str(int(started) - 3_600_000))
        assert is_stale(folder.with_name(earlier), "test")
        assert not is_stale(folder, "other")


def test_a_process_is_known_by_its_number_and_its_start():
    started = psutil.Process().create_time()
    assert is_running(os.getpid(), started)
    assert is_running(os.getpid(), started + 2)  # the clock was set
    assert not is_running(os.getpid(), started - 3600)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(gone.pid).create_time()
    gone.wait()
    assert not is_running(gone.pid, started)


def test_a_process_that_nobody_may_look_at_is_left_alone(monkeypatch):
    def refused(pid):
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refused)
    assert is_running(1, 0.0)
