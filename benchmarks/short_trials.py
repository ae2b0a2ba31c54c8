"""A trial that needs no model: what answers about an entry of a suite of short trials.

It imports the standard library alone, so that thousands of them take minutes.
"""

import hashlib
import os
import time
from typing import Any


def answer(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a digest of the entry, after some work on the processor; every 50th fails."""
    size = int(entry["batch_size"])
    if size % 50 == 0:
        raise ValueError(f"trial {size} fails on purpose")
    end, digest = time.perf_counter() + 0.005, str(size).encode()
    while time.perf_counter() < end:
        digest = hashlib.sha256(digest).digest()
    once = hashlib.sha256(str(size).encode()).hexdigest()
    return {"details": {"digest": once, "pid": os.getpid()}}
