import subprocess
import sys

import psutil
import pytest

from tinytorch.measure import environment as control_groups
from tinytorch.measure import memory as size_memory
from tinytorch.measure.memory import available_bytes, be_first_to_go

FENCED = """
import numpy as np
from tinytorch.measure.memory import fence_memory
holds = fence_memory(200 << 20)
small = np.ones(10 << 20, np.uint8)
try:
    large = np.empty(400 << 20, np.uint8)
except MemoryError:
    large = None
print(holds, small.sum(), large is None)
"""


def test_what_is_available_is_no_more_than_there_is():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a fence")
def test_allocations_fail_beyond_the_fence():
    ran = subprocess.run([sys.executable, "-c", FENCED], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", str(10 << 20), "True"]


def test_a_system_without_fences_says_so(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(size_memory.importlib, "import_module", missing)
    assert size_memory.fence_memory(1 << 20) is False


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Give folders for control groups that the process seems to be in."""
    listing = tmp_path / "cgroup"
    monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", listing)
    monkeypatch.setattr(control_groups, "GROUP_TREE", tmp_path / "tree")

    def make(line, folder, files):
        listing.write_text(line)
        (tmp_path / "tree" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "tree" / folder / name).write_text(text)

    return make


def test_a_limit_of_the_group_counts(groups):
    stat = "anon 100\ninactive_file 30\n"
    files = {"memory.max": "1000\n", "memory.current": "400\n", "memory.stat": stat}
    groups("0::/inner/most\n", "inner", files)  # a limit of the group around ours
    assert available_bytes() == 630


def test_a_limit_in_the_older_layout_counts(groups):
    files = {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "400"}
    groups("4:memory:/job\n1:cpu:/\n", "memory/job", files)
    assert available_bytes() == 600


def test_a_group_without_a_limit_changes_nothing(groups):
    groups("0::/\n", "", {"memory.max": "max\n", "memory.current": "400\n"})
    assert available_bytes() > 1000


def test_nobody_minds_when_the_score_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(size_memory, "OOM_SCORE", tmp_path / "missing" / "score")
    assert be_first_to_go() is None
    monkeypatch.setattr(size_memory, "OOM_SCORE", tmp_path / "score")
    be_first_to_go()
    assert (tmp_path / "score").read_text() == "1000"
