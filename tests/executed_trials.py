"""What answers trials of executors in tests: the standard library alone, so that it starts fast."""

from pathlib import Path

SERVICES = '''
import os, time
from pathlib import Path

def affinity():
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

def where():
    return {"cores": affinity(), "pid": os.getpid(), "folder": os.getcwd()}

def fails():
    raise ValueError("the wires are crossed")

def dies():
    os._exit(3)

def hangs(file):
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)

def span(seconds=0.05):
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        pass
    return {"start": start, "end": time.monotonic(), "cores": affinity()}

def arrival():
    """Each core is a machine of its own kind."""
    return {"environment": {"fingerprint": f"core{affinity()[0]:012d}", "cpu_model": "c",
                            "usable_cores": 1}}

def entry(entry):
    with open("asked", "a") as file:
        file.write(entry["target"] + "\\n")
    if "broken" in entry["target"]:
        raise ValueError("the wires are crossed")
    return {"details": {"answered": entry["target"]}}
'''


def write_services(folder: Path) -> None:
    """Write the module `services` into a folder that processes import from."""
    (folder / "services.py").write_text(SERVICES, "utf-8")
