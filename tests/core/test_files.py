"""Folders, and atomic writing: the old file or the new one, whatever happens in between."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tinytorch.core.files import cache_folder, write_atomically


def test_the_own_variable_comes_first(monkeypatch, tmp_path):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TINYTORCH_CACHE")
    assert cache_folder() == tmp_path / "shared" / "tinytorch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "tinytorch"


def test_the_new_file_replaces_the_old_one_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "kept.bin"
    for content in (b"old", b"new"):
        with write_atomically(path) as temporary:
            temporary.write_bytes(content)
            assert temporary.parent == path.parent  # so that replacing it is one step
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_seen_until_the_block_ends(tmp_path):
    path = tmp_path / "kept.bin"
    path.write_bytes(b"old")
    with write_atomically(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"


def write_and_raise(path, error):
    with write_atomically(path) as temporary:
        temporary.write_bytes(b"ne")
        raise error


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path, interruption):
    path = tmp_path / "kept.bin"
    path.write_bytes(b"old")
    with pytest.raises(interruption):
        write_and_raise(path, interruption)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_first_write_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="stop"):
        write_and_raise(tmp_path / "new.bin", ValueError("stop"))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_when_it_is_flushed_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "kept.bin"
    path.write_bytes(b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"), write_atomically(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "kept.bin"
    with write_atomically(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_file_has_the_permissions_of_any_new_file(tmp_path, mask, mode):
    path = tmp_path / "kept.bin"
    previous = os.umask(mask)
    try:
        with write_atomically(path) as temporary:
            temporary.write_bytes(b"new")
        assert os.umask(mask) == mask  # left as it was
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == mode


FULL_DISK = """
import resource, sys
import numpy as np
from pathlib import Path
from tinytorch.core.checkpoints import read_arrays, write_arrays
from tinytorch.core.files import cache_folder, write_atomically
from tinytorch.errors import CheckpointError

folder = Path(sys.argv[1])
write_arrays(folder / "weights", {"a": np.ones(10)})
(folder / "text").write_text("old")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a file that grows further fails
failures = 0
try:
    write_arrays(folder / "weights", {"a": np.zeros(10_000)})
except (CheckpointError, OSError):
    failures += 1
try:
    with write_atomically(folder / "text") as temporary:
        temporary.write_bytes(b"x" * 10_000)
except OSError:
    failures += 1
assert failures == 2, failures
assert read_arrays(folder / "weights")[0]["a"].tolist() == [1.0] * 10
assert (folder / "text").read_text() == "old"
assert sorted(path.name for path in folder.iterdir()) == ["text", "weights"]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_full_disk_leaves_the_old_files_alone(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_what_a_link_points_to_is_replaced(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with write_atomically(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    with write_atomically(pipe) as temporary:
        temporary.write_text("new")
    reader.join(timeout=10)
    assert read == ["new"]
    assert pipe.is_fifo()
