"""Where files go, and writing them so that a reader sees the old one or the new one, never half."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "write_atomically"]


def cache_folder() -> Path:
    """Give the folder for what can be made again: TINYTORCH_CACHE, or the user's cache."""
    own = os.environ.get("TINYTORCH_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "tinytorch"


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it replaces `path` when the block ends well.

    When the block raises, or the disk is full, `path` stays as it was. A link stays a link: what it
    points to is replaced. A device or a pipe is never replaced, but written to.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with _copied_to(path) as temporary:
            yield temporary
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(_usual_mode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _copied_to(device: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, "written")
        yield temporary
        with temporary.open("rb") as source, device.open("wb") as destination:
            shutil.copyfileobj(source, destination)


def _usual_mode() -> int:
    """Give the permissions of a new file; mkstemp makes it private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
