"""What a confined process tries, and what came of each: run it as a file, with its own settings.

The tests of confinement start it once and read what it says.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


def connect(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


def write(path: str) -> None:
    Path(path).write_text("x")


def run_thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def main() -> None:
    from tinytorch.competition.cell.confinement import Confinement, confine, program_paths

    asked = json.loads(sys.argv[1])
    parent = os.getppid()
    protection = confine(
        Confinement(
            readable=(*program_paths(), asked["entry"]),
            writable=(os.getcwd(),),
            address_space_bytes=4 << 30,
            core=max(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
        )
    )
    attempts: dict[str, Callable[[], object]] = {
        "read own entry": Path(asked["entry"], "entry.json").read_text,
        "read a secret": Path(asked["secret"]).read_text,
        "read TinyTorch": Path(asked["package"], "errors.py").read_text,
        "read beside TinyTorch": lambda: os.listdir(Path(asked["package"]).parent),
        "list the system": lambda: os.listdir("/"),
        "write here": lambda: write("own"),
        "write to the entry": lambda: write(f"{asked['entry']}/new"),
        "mark the entry": lambda: os.setxattr(f"{asked['entry']}/entry.json", "user.x", b"1"),
        "date the entry": lambda: os.utime(f"{asked['entry']}/entry.json", (1, 1)),
        "write elsewhere": lambda: write(f"{asked['secret']}.new"),
        "remove a secret": lambda: os.unlink(asked["secret"]),
        "read the judge's memory": lambda: os.open(f"/proc/{parent}/mem", os.O_RDONLY),
        "read the judge's variables": Path(f"/proc/{parent}/environ").read_bytes,
        "read own state": Path("/proc/self/status").read_text,
        "signal the judge": lambda: os.kill(parent, 0),
        "connect": lambda: connect(asked["port"]),
        "make a pair of sockets": socket.socketpair,
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": os.fork,
        "start a thread": run_thread,
        "use all cores": lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
    }
    found = {name: outcome(attempt) for name, attempt in attempts.items()}
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    status = Path("/proc/self/status").read_text() if sys.platform == "linux" else ""
    said = {
        "protection": {name: asdict(each) for name, each in protection.items()},
        "found": found,
        "cores": cores,
        "status": status,
    }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
