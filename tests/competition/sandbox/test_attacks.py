"""What code of an entry tries against the judge, the reference and the machine is refused.

Each attempt really runs in the sandbox, as whoever runs the tests: `.ci/run` does so as root and as
an ordinary user.
"""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from parts import require_sandbox

require_sandbox()
sys.path.insert(0, str(Path(__file__).parent / "entry_code"))
import attacks

from tinytorch.competition.sandbox.contender import Contender, ContenderError, Limits
from tinytorch.competition.sandbox.contender_process import ANSWERS_BYTES, ContenderProcess
from tinytorch.competition.sandbox.restrictions import FREE_FILES_BYTES

CODE = Path(attacks.__file__)
IMAGE = np.zeros((1, 784), np.float32)
NOT_THERE, READ_ONLY, REFUSED = errno.ENOENT, errno.EROFS, errno.EPERM
NAMES = (
    "chmod 0777 of a secret", "chmod 4755 of a program", "chmod of the entry",
    "fchmod of what it writes to", "fchmodat2", "chown", "fchown", "setxattr", "removexattr",
    "setxattrat", "removexattrat", "ioctl(FS_IOC_SETFLAGS)", "utime",
    "read a secret", "remove a secret", "list the folder of a secret", "write to the entry",
    "write beside the entry", "write to the root", "write to /dev/shm", "remove a device",
    "open settings of the kernel", "open the trigger of the kernel", "open memory of bubblewrap",
    "read the judge's memory", "read the judge's variables",
    "fork", "clone", "clone3", "start a program", "become a program", "leave the session",
    "leave the process group", "signal the judge", "signal everybody", "outlive the judge",
    "limit the judge's time", "limit the judge's files", "raise own limits",
    "renice everybody", "renice another", "renice itself", "another core", "another schedule",
    "memfd_create", "memfd_secret", "shmget", "mq_open", "add_key", "keyctl",
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_open", "bpf", "userfaultfd",
    "io_uring", "perf_event_open", "unshare", "setns", "mount", "umount", "open_tree",
    "a connection", "a socket of files", "a pair of sockets",
)  # fmt: skip
NO_SUCH_PLACE = {
    "read a secret", "list the folder of a secret", "read the judge's memory",
    "read the judge's variables", "open the trigger of the kernel", "remove a secret",
}  # fmt: skip
OTHER_ERRORS = {
    "signal the judge": {errno.ESRCH},
    "signal everybody": {errno.ESRCH},
    "clone3": {errno.ENOSYS},
    "open settings of the kernel": {errno.EACCES},
    "open the trigger of the kernel": {errno.EACCES},
    "open memory of bubblewrap": {errno.EACCES},
    "write beside the entry": {errno.EACCES},
}


class Place:
    """A folder with an entry, and a secret of the judge beside it."""

    def __init__(self, folder: Path) -> None:
        self.secret, self.entry = folder / "secret" / "round.json", folder / "entry"
        for each in (self.secret.parent, self.entry):
            each.mkdir()
        self.secret.write_text("seed")
        self.secret.chmod(0o600)
        shutil.copy(CODE, self.entry)
        (self.entry / "entry.json").write_text("{}")
        (self.entry / "paths.txt").write_text(f"{self.secret}\n{os.getpid()}\n")

    def contender(self, name: str) -> Contender:
        return Contender("mlp_sprint", code=f"{self.entry / CODE.name}:{name}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("attacks"))


def limits_of(pid: int) -> dict[str, Any]:
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)
    return {
        "limits": [resource.prlimit(pid, kind) for kind in kinds],
        "nice": os.getpriority(0, pid),
    }


@pytest.fixture(scope="module")
def seen(place: Place) -> dict[str, Any]:
    """Try everything once while the reference runs, too."""
    found: dict[str, Any] = {"before": place.secret.stat(), "judge": limits_of(os.getpid())}
    with ContenderProcess(Contender("mlp_sprint")) as reference:
        found["nice"] = psutil.Process(reference.pid).nice()
        with ContenderProcess(place.contender("everything")) as contender:
            contender.load()
            outcomes = contender.ask("forward", IMAGE).output
            found["usage"] = contender.usage()
            found["protection"] = contender.protection
        found["outcomes"] = dict(zip(attacks.attempts_named(), map(int, outcomes), strict=True))
        found["reference"] = psutil.Process(reference.pid).nice()
    return found


def test_every_attempt_is_looked_at(seen: dict[str, Any]) -> None:
    assert tuple(seen["outcomes"]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_refused(seen: dict[str, Any], name: str) -> None:
    expected = {REFUSED, READ_ONLY} | ({NOT_THERE} if name in NO_SUCH_PLACE else set())
    assert seen["outcomes"][name] in expected | OTHER_ERRORS.get(name, set())


def test_nothing_has_changed(seen: dict[str, Any], place: Place) -> None:
    before, after = seen["before"], place.secret.stat()
    assert (before.st_mode, before.st_uid, before.st_mtime) == (
        after.st_mode, after.st_uid, after.st_mtime,
    )  # fmt: skip
    assert place.secret.read_text() == "seed"
    assert limits_of(os.getpid()) == seen["judge"]
    assert seen["reference"] == seen["nice"]
    names = {each.name for each in place.entry.iterdir()}
    assert names == {"attacks.py", "entry.json", "paths.txt"}


def test_it_says_what_is_in_force(seen: dict[str, Any]) -> None:
    names = {"sandbox", "system calls", "memory", "threads", "cores"}
    assert set(seen["protection"]) == names
    assert all(each.is_in_force and each.how for each in seen["protection"].values())
    assert seen["usage"].processes == 1


def test_bubblewrap_itself_cannot_be_ended(place: Place) -> None:
    with ContenderProcess(place.contender("ending_bubblewrap")) as contender:
        contender.load()
        answers = [contender.ask("forward", IMAGE).output[0] for _ in range(2)]
    assert answers == [0, 0]  # the call is allowed, and the kernel does nothing


# ---------------------------------------------------------------- what cannot be refused is bounded


def _use(process: ContenderProcess, asks: int) -> None:
    process.load()
    for _ in range(asks):
        process.ask("forward", IMAGE)


def _use_and_hold(process: ContenderProcess) -> None:
    """Use it for a turn: what is not noticed while it answers is noticed at the end."""
    process.ask("forward", IMAGE)
    process.hold()


def ended_by(contender: Contender, limits: Limits, *, asks: int = 1) -> ContenderError:
    with ContenderProcess(contender, limits=limits) as process:
        with pytest.raises(ContenderError) as caught:
            _use(process, asks)
        assert not psutil.pid_exists(process.pid)
    return caught.value


@pytest.mark.parametrize("name", ["hoarding_shared", "making_files"])
def test_memory_and_files_end_a_contender_in_the_middle_of_a_call(place: Place, name: str) -> None:
    limits = Limits(memory_bytes=512 << 20, files=5_000)
    assert ended_by(place.contender(name), limits).rule == "T6"


def test_files_together_have_a_limit(place: Place) -> None:
    with ContenderProcess(place.contender("filling_files")) as contender:
        contender.load()
        assert contender.ask("forward", IMAGE).output[0] <= FREE_FILES_BYTES


def test_threads_have_a_limit(place: Place) -> None:
    """With a control group no more can be started; without one the watch ends their process."""
    limits = Limits(threads=32)
    with ContenderProcess(place.contender("making_threads"), limits=limits) as contender:
        contender.load()
        with pytest.raises(ContenderError, match="threads") as caught:
            _use_and_hold(contender)
    assert caught.value.rule == "T6"


def test_all_answers_together_have_a_limit(place: Place) -> None:
    asks = ANSWERS_BYTES // (1 << 20) + 2
    assert ended_by(place.contender("answering_much"), Limits(), asks=asks).rule in ("T6", "A1")


@pytest.mark.parametrize("name", ["with_a_large_description", "with_a_dense_description"])
def test_what_it_says_of_itself_is_bounded_before_it_is_read(place: Place, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert ended_by(place.contender(name), Limits()).rule == "A1"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 32 << 10


@pytest.mark.slow
def test_nothing_outlives_the_judge(place: Place) -> None:
    script = (
        "from tinytorch.competition.sandbox.contender import Contender\n"
        "from tinytorch.competition.sandbox.contender_process import ContenderProcess\n"
        "import numpy\n"
        f"with ContenderProcess({place.contender('clinging')!r}) as contender:\n"
        "    contender.load()\n"
        "    print(contender.pid, flush=True)\n"
        "    contender.ask('forward', numpy.zeros((1, 784), 'f'))\n"
    )
    judge = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert judge.stdout is not None
    with judge.stdout:
        contender = psutil.Process(int(judge.stdout.readline()))
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    until = time.monotonic() + 30
    while contender.is_running() and contender.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "it outlived the judge"
        time.sleep(0.05)
