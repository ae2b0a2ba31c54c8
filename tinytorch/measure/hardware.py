"""Facts about the processor, read from the operating system; None where it does not say."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cache", "cache_levels", "cpu_model", "frequency_governor", "instruction_sets"]

CPU_FILE = Path("/proc/cpuinfo")
CPU_TREE = Path("/sys/devices/system/cpu")
MATTERING = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
"""Instructions that decide how fast matrix products are, in the kernel's spelling."""


@dataclass(frozen=True)
class Cache:
    """One level of data cache: what one piece holds, and all pieces that we may use together."""

    one_bytes: int
    total_bytes: int


def cpu_model() -> str | None:
    """Give the name of the processor."""
    names = re.findall(r"^(?:model name|cpu model|Model)\s*:\s*(.+)$", _text(CPU_FILE), re.M)
    if names:
        return str(names[0]).strip()
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    return platform.processor() or None


def instruction_sets() -> tuple[str, ...]:
    """Give the instruction sets that matter for speed and that the processor says it has."""
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", _text(CPU_FILE), re.M)
    found = set(lines[0].split()) if lines else set()
    return tuple(name for name in MATTERING if name in found)


def frequency_governor() -> str | None:
    """Give the rule by which the kernel sets the processor's frequency."""
    return _text(CPU_TREE / "cpu0" / "cpufreq" / "scaling_governor").strip() or None


def cache_levels(cpus: frozenset[int] | None = None) -> dict[str, Cache]:
    """Give the data caches by name (L1d, L2, L3, ...), as seen from some logical CPUs, or all.

    Each piece counts once, however many of the CPUs share it.
    """
    pieces: dict[str, dict[str, int]] = {}
    for level, sharers, size in _cache_pieces(cpus):
        pieces.setdefault(level, {})[sharers] = size
    if pieces:
        return {
            level: Cache(max(sizes.values()), sum(sizes.values()))
            for level, sizes in sorted(pieces.items())
        }
    return _mac_caches() if sys.platform == "darwin" else {}


def _cache_pieces(cpus: frozenset[int] | None) -> Iterator[tuple[str, str, int]]:
    for folder in CPU_TREE.glob("cpu[0-9]*/cache/index[0-9]*"):
        if cpus is not None and int(folder.parent.parent.name[3:]) not in cpus:
            continue
        kind, level = _text(folder / "type").strip(), _text(folder / "level").strip()
        size = _size_in_bytes(_text(folder / "size"))
        if kind in ("Data", "Unified") and level and size:
            sharers = _text(folder / "shared_cpu_list").strip() or str(folder)
            yield f"L{level}d" if level == "1" else f"L{level}", sharers, size


def _size_in_bytes(text: str) -> int | None:
    """Read a size such as ``32K``."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else None


def _mac_caches() -> dict[str, Cache]:
    found = {}
    for name, key in (
        ("L1d", "hw.l1dcachesize"),
        ("L2", "hw.l2cachesize"),
        ("L3", "hw.l3cachesize"),
    ):
        size = _sysctl(key)
        if size and size.isdecimal() and int(size):
            found[name] = Cache(int(size), int(size))
    return found


def _sysctl(key: str) -> str | None:
    try:
        ran = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
