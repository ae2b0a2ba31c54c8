"""The filter of system calls is the program that the kernel expects."""

import platform
import struct
import sys

import pytest

from tinytorch.competition.cell import confinement as syscall_filter
from tinytorch.competition.cell.confinement import forbid_calls
from tinytorch.errors import SettingError

ALLOW, NOT_PERMITTED, UNKNOWN = 0x7FFF0000, 0x00050001, 0x00050026
X86 = 0xC000003E


def run_filter(program: bytes, *, number: int, architecture: int = X86, flags: int = 0) -> int:
    """Run a filter as the kernel does, and give what it returns."""
    words = {0: number, 4: architecture, 16: flags}
    held, place = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, place * 8)
        place += 1
        if code == 0x06:
            return value
        if code == 0x20:
            held = words[value]
            continue
        is_so = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        place += yes if is_so else no


@pytest.mark.parametrize(
    "name", ["socket", "ptrace", "process_vm_readv", "shmget", "sched_setaffinity"]
)
def test_refused_calls_are_not_permitted(name: str) -> None:
    program = syscall_filter._program("x86_64", starting_processes=False)
    number = syscall_filter.REFUSED[name][0]
    assert run_filter(program, number=number) == NOT_PERMITTED


def test_ordinary_calls_are_allowed_and_other_interfaces_refused() -> None:
    program = syscall_filter._program("x86_64", starting_processes=True)
    assert run_filter(program, number=0) == ALLOW  # read
    assert run_filter(program, number=0x40000000) == NOT_PERMITTED
    assert run_filter(program, number=0, architecture=0x40000003) == 0x80000000


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_threads_can_be_started_and_processes_cannot(machine: str, clone: int) -> None:
    program = syscall_filter._program(machine, starting_processes=True)
    own = syscall_filter.ARCHITECTURES[machine]
    assert run_filter(program, number=clone, architecture=own, flags=0x00010000) == ALLOW
    assert run_filter(program, number=clone, architecture=own, flags=17) == NOT_PERMITTED
    assert run_filter(program, number=435, architecture=own) == UNKNOWN


def test_processes_can_be_started_where_they_are_wanted() -> None:
    program = syscall_filter._program("x86_64", starting_processes=False)
    assert run_filter(program, number=56, flags=17) == ALLOW


def test_an_unknown_processor_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SettingError, match=f"no filter .* is known for {sys.platform} on riscv64"):
        forbid_calls(starting_processes=True)
