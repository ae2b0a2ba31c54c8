"""Tries to read what is not its own: the paths in a file beside it, the judge's, what it inherited.

If it can read any of them, its answers are not numbers, which everybody sees.
"""

import os
import stat
from pathlib import Path

import numpy as np

from tinytorch.core.tensor import Tensor


def readable(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1)) or True
    except OSError:
        return False


def listable(path):
    try:
        os.listdir(path)
    except OSError:
        return False
    return True


def inherited():
    """Give what is open besides the three usual files, one socket, and what we open ourselves."""
    sockets, others = 0, []
    for name in os.listdir("/proc/self/fd"):
        try:
            state, target = os.fstat(int(name)), os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the list itself
        sockets += stat.S_ISSOCK(state.st_mode)
        if int(name) > 2 and not stat.S_ISSOCK(state.st_mode) and "/proc/" not in target:
            others.append(target)
    return others if sockets == 1 else [*others, f"{sockets} sockets"]


def make(reference, techniques):
    model = reference.model
    secrets = Path(__file__).with_name("paths.txt").read_text(encoding="utf-8").splitlines()
    judge = os.getppid()
    secrets += [f"/proc/{judge}/{name}" for name in ("mem", "environ", "maps", "cmdline", "fd/0")]
    found = [each for each in secrets if readable(each)]
    folders = [f"/proc/{judge}/fd", f"/proc/{judge}/cwd", "/dev/shm", "/", "/home", "/root", "/tmp"]
    found += [each for each in folders if listable(each)]
    found += inherited()
    if found:
        print(*found, flush=True)
        return lambda question: np.full((1, 10), np.nan)
    return lambda question: model(Tensor(question)).data
