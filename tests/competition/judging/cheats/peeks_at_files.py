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


def kept_in(folders):
    """Yield files that somebody else has put there: they say that they are secret."""
    for folder in folders:
        for place, inner, files in os.walk(folder):
            inner[:] = [name for name in inner if name not in ("site-packages", "lib")]
            for name in files:
                path = os.path.join(place, name)
                # A terminal would wait for somebody to type.
                if os.path.isfile(path) and readable(path) and os.path.getsize(path) < 100:
                    with open(path, "rb") as file:
                        if file.read() == b"secret":
                            yield path


def of_others():
    """Yield processes beside this one and the first, and variables of that which are not ours."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    yield from (number for number in numbers if number not in (1, os.getpid()))
    with open("/proc/1/environ", "rb") as file:
        names = [each.partition(b"=")[0] for each in file.read().split(b"\0") if each]
    yield from (name for name in names if name not in os.environb)


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
    found = [each for each in secrets if readable(each)]
    found += kept_in(["/dev", "/home", "/root", "/tmp", os.path.dirname(__file__)])
    found += of_others()
    found += inherited()
    if found:
        print(*found, flush=True)
        return lambda question: np.full((1, 10), np.nan)
    return lambda question: model(Tensor(question)).data
