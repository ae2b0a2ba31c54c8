"""Files that a command writes beside its result: refused before measuring, written whole or not."""

import os
from pathlib import Path
from tempfile import TemporaryFile

from tinytorch.cli.console import Output
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError


def check_writable(path: Path) -> None:
    """Try whether a file can be made where `path` will be; minutes of measuring depend on it."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # a device or a pipe, which is written to
        if not os.access(path, os.W_OK):
            raise SettingError(f"{path} cannot be written: no permission")
        return
    path = Path(os.path.realpath(path))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingError(f"{path} cannot be written: there is no folder {folder}")
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"{path} cannot be written: {folder}: {reason}") from error


def write_file(path: Path, text: str, output: Output) -> None:
    """Write a file and say so. A reader sees the old one or the new one, never half."""
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
    output.say(f"wrote {path}")
