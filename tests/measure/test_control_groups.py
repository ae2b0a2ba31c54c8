import pytest

from tinytorch.measure import environment as control_groups
from tinytorch.measure.environment import group_folders


@pytest.fixture
def listing(tmp_path, monkeypatch):
    path = tmp_path / "of_process"
    monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", path)
    monkeypatch.setattr(control_groups, "GROUP_TREE", tmp_path / "tree")
    return path


def test_one_tree_holds_all_controllers(listing, tmp_path):
    listing.write_text("0::/pod/ours\n")
    tree = tmp_path / "tree"
    assert list(group_folders("memory")) == [tree / "pod/ours", tree / "pod", tree]


def test_each_controller_may_have_a_tree_of_its_own(listing, tmp_path):
    listing.write_text("3:cpu,cpuacct:/ours\n2:memory:/theirs\n")
    tree = tmp_path / "tree"
    assert list(group_folders("cpu")) == [tree / "cpu,cpuacct/ours", tree / "cpu,cpuacct"]
    assert list(group_folders("memory")) == [tree / "memory/theirs", tree / "memory"]


def test_a_system_without_groups_has_no_folders(listing):
    assert list(group_folders("cpu")) == []
