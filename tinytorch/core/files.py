"""Cache folders, atomic writes, and progress on a terminal."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any, TextIO

from tinytorch import reading

__all__ = ["ProgressLine", "cache_folder", "keep_freed_memory", "write_atomically"]


def cache_folder() -> Path:
    """Return the folder for what can be made again: TINYTORCH_CACHE, or the user's cache."""
    own = os.environ.get("TINYTORCH_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "tinytorch"


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` when the block ends well.

    When the block raises, or the disk is full, `path` stays as it was. A link stays a link: what it
    points to is replaced, and keeps its permissions. A device or a pipe is never replaced, but
    written to.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with _copied_to(path) as temporary:
            yield temporary
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.partial")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
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


# ---------------------------------------------------------------- what was measured on a machine,
# and is kept for other processes


def read_kept(path: Path, **versions: Any) -> dict[str, Any]:
    """Read what :func:`write_kept` wrote; nothing where that failed, or was of other versions."""
    try:
        content = reading.read_json(path)
        same = all(content[name] == version for name, version in versions.items())
        return dict(content) if same else {}
    # Whatever is wrong with the file: it can be measured again.
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def write_kept(path: Path, **content: Any) -> str | None:
    """Write what was measured, its versions among it; return why that failed, if it did."""
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
    except OSError as error:
        return f"not kept for the next time: {path.parent} cannot be written ({error.strerror})"
    return None


# ---------------------------------------------------------------- telling the C library what to do
# with memory that arrays have freed

# The numbers that glibc's mallopt(3) gives to these settings.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_KEPT_BLOCK = 32 << 20  # the most that glibc accepts
KEPT_IN_ALL = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for the next arrays, instead of giving it back at once.

    A training step frees most of what it allocates. By default glibc hands that back to the
    operating system, and the next step pays for every page again, which can take as long as the
    computation. This changes the whole process for good and makes it look larger from outside, so
    it is for programs, not for libraries, to call. Returns whether it took effect (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    blocks = mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
    return bool(blocks and mallopt(M_TRIM_THRESHOLD, KEPT_IN_ALL))


# ---------------------------------------------------------------- a line that shows how far long
# work has come

WIDTH = 24
PATIENCE_S = 2.0
REDRAW_S = 0.1


class ProgressLine:
    """One line on a terminal that redraws itself, once the work takes longer than two seconds.

    Nothing is written when the stream is not a terminal.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total = max(1, total)
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()
        self._next_draw = monotonic() + PATIENCE_S
        self._drawn = False

    def advance(self, text: str = "") -> None:
        """Count one step and say what is known so far."""
        self.done += 1
        if self._visible and monotonic() >= self._next_draw:
            self._next_draw = monotonic() + REDRAW_S
            self._drawn = True
            share = min(1.0, self.done / self.total)
            bar = ("#" * int(WIDTH * share)).ljust(WIDTH, ".")
            self._stream.write(f"\r[{bar}] {int(100 * share):3d}% {text}\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
