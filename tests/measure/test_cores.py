import os

import pytest

from tinytorch.measure import environment as control_groups
from tinytorch.measure import environment as cores
from tinytorch.measure.environment import cpu_quota, usable_cores


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Give a function that writes files of control groups and says which ones are ours."""
    monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", tmp_path / "of_process")
    monkeypatch.setattr(control_groups, "GROUP_TREE", tmp_path / "tree")

    def write(of_process, files):
        (tmp_path / "of_process").write_text(of_process)
        for name, content in files.items():
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def test_without_control_groups_there_is_no_quota(groups):
    assert cpu_quota() is None


def test_the_unified_layout_is_read(groups):
    groups("0::/box/inner\n", {"box/inner/cpu.max": "150000 100000\n"})
    assert cpu_quota() == 1.5


def test_the_tightest_group_around_us_counts(groups):
    files = {"box/cpu.max": "50000 100000", "box/inner/cpu.max": "max 100000"}
    groups("0::/box/inner\n", files)
    assert cpu_quota() == 0.5


def test_the_older_layout_is_read(groups):
    files = {
        "cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n",
        "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    }
    groups("5:memory:/other\n4:cpu,cpuacct:/box\n", files)
    assert cpu_quota() == 3.0


@pytest.mark.parametrize("content", ["max 100000", "", "nonsense", "two words", "1 0"])
def test_no_limit_is_none(groups, content):
    groups("0::/\n", {"cpu.max": content})
    assert cpu_quota() is None


def test_an_unlimited_older_group_is_none(groups):
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    groups("4:cpu:/\n", files)
    assert cpu_quota() is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (0.2, 1), (2.5, 3), (64.0, 8)])
def test_the_quota_cuts_the_affinity(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert usable_cores() == expected


def test_where_there_is_no_affinity_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    assert usable_cores() == 6
