"""The end of a page: where it was measured, what to doubt, and the raw values to take away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinytorch import __version__
from tinytorch.measure.environment import Environment
from tinytorch.reporting.html.markup import Markup, element, joined, listed
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.tables import Column, table
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, percent_text

__all__ = ["appendix"]

NAMES = {
    "cpu_model": "processor",
    "instruction_sets": "instruction sets",
    "physical_cores": "cores",
    "logical_cores": "hardware threads",
    "usable_cores": "usable cores",
    "cpu_quota": "quota of cores",
    "caches": "caches",
    "governor": "frequency governor",
    "frequency_mhz": "frequency",
    "memory_bytes": "memory",
    "steal_share": "time taken by other guests",
    "load_average": "load when it began",
    "system": "system",
    "machine": "architecture",
    "python": "Python",
    "libraries": "libraries",
    "blas": "BLAS",
    "threads": "thread settings",
    "threads_in_force": "threads",
    "commit": "commit",
    "fingerprint": "fingerprint of the machine",
}
"""Field of an Environment -> what a reader calls it. Fields without a row keep their own name."""


def appendix(
    environment: Environment | Mapping[str, Any] | None,
    notes: Sequence[str] = (),
    raw: Mapping[str, Any] | None = None,
    *,
    file_name: str = "tinytorch-report.json",
) -> Section:
    """Give the section with environment, notes and version.

    `raw` is what the page holds as ``Page.raw``; with it, a button offers it as a file.
    """
    body = joined(
        [
            _notes(notes),
            _environment(environment),
            _raw(file_name) if raw else Markup(""),
        ]
    )
    return Section("appendix", "Appendix", body, "Where the numbers come from.")


def _notes(notes: Sequence[str]) -> Markup:
    if not notes:
        return Markup("")
    return joined([element("h3", "Notes"), listed(notes)])


def _environment(environment: Environment | Mapping[str, Any] | None) -> Markup:
    heading = element("h3", "Environment")
    fields = environment.to_dict() if isinstance(environment, Environment) else environment
    unknown = element("p", "Where it was measured was not kept.", class_="muted")
    rows = [
        ("this page", f"written by tinytorch {__version__}"),
        *_rows(fields or {}),
    ]
    drawn = table([Column("what"), Column("value")], rows, sortable=False, class_="environment")
    return joined([heading, drawn] if fields else [heading, unknown, drawn])


def _rows(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [name for name in NAMES if name in fields]
    others = [name for name in fields if name not in NAMES]
    return [
        (NAMES.get(name, name.replace("_", " ")), _field_text(name, fields[name]))
        for name in [*known, *others]
    ]


def _raw(file_name: str) -> Markup:
    button = element(
        "button", "Save the raw values", type="button", data_save="raw", data_file=file_name
    )
    about = "Everything that this page was made from, as JSON; it is inside of this file."
    return joined(
        [
            element("h3", "Raw values"),
            element("p", about, class_="muted"),
            element("p", button, class_="tools"),
        ]
    )


def _field_text(name: str, value: Any) -> str:
    if value is None or value == {} or value == []:
        return UNKNOWN
    if name == "memory_bytes":
        return bytes_text(value)
    if name == "steal_share":
        return percent_text(value)
    if name == "frequency_mhz":
        return f"{value:,.0f} MHz"
    if name == "commit":
        return str(value["hash"])[:12] + (" and changes" if value["is_dirty"] else "")
    if name == "caches":
        return ", ".join(f"{level} {_cache_text(each)}" for level, each in value.items())
    return _any_text(value)


def _cache_text(cache: Mapping[str, int]) -> str:
    count = round(cache["total_bytes"] / cache["one_bytes"])
    size = bytes_text(cache["one_bytes"])
    return size if count == 1 else f"{count} x {size}"


def _any_text(value: Any) -> str:
    """Write a value whose name says nothing about its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_any_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_any_text, value))
    return str(value)
