"""Write an entry to start from."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tinytorch.competition.entries.entry import MANIFEST, Entry, EntryError, Technique
from tinytorch.competition.entries.entry_examples import EXAMPLES, readme_of
from tinytorch.competition.entries.entry_file import read_entry, write_entry
from tinytorch.competition.events import find_event
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError

__all__ = ["new_entry"]

README, CODE, FUNCTION = "README.md", "model.py", "make"
WAYS = ("techniques", "code")


def new_entry(
    folder: str | Path,
    *,
    event: str,
    team: str,
    division: str = "closed",
    tier: float = 0.99,
    example: Literal["techniques", "code"] = "techniques",
) -> Entry:
    """Write an entry that can be judged at once, with a page that explains it, and give it.

    `example` is whether it declares techniques of TinyTorch or has code of its own, `model.py`.
    Nothing is overwritten.
    """
    if example not in WAYS:
        raise SettingError(f"example={example!r}; there are {' and '.join(WAYS)}")
    start, is_code = EXAMPLES[find_event(event).name], example == "code"
    names = start.coded if is_code else start.compiled if find_spec("numba") else start.techniques
    entry = Entry(
        team,
        event,
        division,
        tier,
        tuple(Technique(name) for name in names),
        code=f"{CODE}:{FUNCTION}" if is_code else None,
    )
    texts = {README: _explain(entry)} | ({CODE: start.code} if is_code else {})
    place = Path(folder)
    _check_free(place, (MANIFEST, *texts))
    for name, text in texts.items():
        with write_atomically(place / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    write_entry(entry, place)
    return read_entry(place)


def _explain(entry: Entry) -> str:
    event = find_event(entry.event)
    return readme_of(
        event.name,
        is_code=entry.code is not None,
        title=event.title,
        team=_in_table(entry.team),
        about=event.about,
        division=entry.division,
        tier=str(entry.tier),
        techniques=", ".join(each.name for each in entry.techniques) or "none",
        code=entry.code or "null",
    )


def _in_table(text: str) -> str:
    """Write text so that Markdown shows it as it is."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>()#+-.!|&" else letter for letter in text)


def _check_free(folder: Path, names: tuple[str, ...]) -> None:
    if folder.exists() and not folder.is_dir():
        raise EntryError("E1", f"{folder} is a file", "give the name of a new folder")
    taken = next((name for name in names if os.path.lexists(folder / name)), None)
    if taken is not None:
        raise EntryError(
            "E1",
            f"{folder} holds {taken} already, and nothing is overwritten",
            "give another folder",
        )
