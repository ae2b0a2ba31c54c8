import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from project_files import ROOT

from tinytorch.measure import environment
from tinytorch.measure import environment as control_groups
from tinytorch.measure import environment as disturbance
from tinytorch.measure import environment as hardware
from tinytorch.measure import environment as threads
from tinytorch.measure.environment import Commit, describe_environment


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_this_machine_can_be_described():
    found = describe_environment()
    assert found.usable_cores >= 1
    assert found.logical_cores >= found.usable_cores
    assert found.memory_bytes > 1 << 20
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.libraries["numpy"]
    assert found.commit is None


def test_a_description_is_ready_for_json():
    found = describe_environment()
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["fingerprint"] == found.fingerprint
    assert again["cpu_model"] == found.cpu_model


def test_no_library_is_imported_to_learn_its_version():
    code = (
        "import sys; from tinytorch.measure.environment import describe_environment as d; d();"
        "sys.stderr.write(' '.join({'torch', 'numba', 'scipy', 'transformers'} & {*sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""


def test_what_is_imported_but_not_installed_has_its_version(monkeypatch):
    module = type(sys)("onnxruntime")
    module.__version__ = "1.2.3"
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    assert describe_environment().libraries["onnxruntime"] == "1.2.3"


def test_a_system_without_proc_and_sys_is_described_all_the_same(tmp_path, monkeypatch):
    nowhere = tmp_path / "nowhere"
    monkeypatch.setattr(hardware, "CPU_FILE", nowhere)
    monkeypatch.setattr(hardware, "CPU_TREE", nowhere)
    monkeypatch.setattr(hardware.platform, "processor", lambda: "")
    monkeypatch.setattr(disturbance, "STAT_FILE", nowhere)
    monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", nowhere)
    monkeypatch.setattr(environment, "_ask_psutil", lambda name, **_: None)
    found = describe_environment()
    unknown = ("cpu_model", "physical_cores", "frequency_mhz", "memory_bytes", "steal_share")
    assert [name for name in unknown if getattr(found, name) is not None] == []
    assert dict(found.caches) == {}
    assert len(found.fingerprint) == 16


def test_what_psutil_cannot_tell_is_none():
    assert environment._ask_psutil("no_such_function") is None


def test_the_commit_of_a_folder_is_named(repository):
    commit = describe_environment(repository).commit
    assert len(commit.hash) == 40
    assert not commit.is_dirty
    assert str(commit) == commit.hash[:12]


def test_changes_since_the_commit_are_noticed(repository):
    (repository / "file").write_text("two")
    commit = describe_environment(repository).commit
    assert commit.is_dirty
    assert str(commit).endswith("and changes")


def test_a_folder_without_a_commit_has_none(tmp_path):
    assert describe_environment(tmp_path).commit is None
    assert describe_environment(tmp_path / "missing").commit is None


def test_without_git_there_is_no_commit(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_environment(repository).commit is None


def test_the_fingerprint_is_the_same_every_time():
    assert describe_environment().fingerprint == describe_environment(ROOT).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_model": "another"},
        {"usable_cores": 999},
        {"threads": {"OMP_NUM_THREADS": "3"}},
        {"threads_in_force": 999},
        {"libraries": {"numpy": "0.1"}},
        {"blas": "another"},
        {"memory_bytes": 1 << 50},
        {"instruction_sets": ("amx_bf16",)},
    ],
)
def test_what_decides_about_speed_changes_the_fingerprint(change):
    found = describe_environment()
    assert dataclasses.replace(found, **change).fingerprint != found.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"load_average": 99.0},
        {"frequency_mhz": 1.0},
        {"steal_share": 0.5},
        {"commit": Commit("0" * 40, True)},
    ],
)
def test_what_changes_by_itself_leaves_the_fingerprint(change):
    found = describe_environment()
    assert dataclasses.replace(found, **change).fingerprint == found.fingerprint


def test_thread_settings_are_those_of_the_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    settings = describe_environment().threads
    assert settings["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in settings


def test_the_threads_of_an_imported_torch_change_the_fingerprint(monkeypatch):
    torch = type(sys)("torch")
    found = []
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for count in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count, raising=False)
        found.append(describe_environment())
    assert [each.threads_in_force for each in found] == [1, 2]
    assert found[0].fingerprint != found[1].fingerprint


def test_nothing_about_the_user_is_told():
    told = json.dumps(describe_environment(ROOT).to_dict())
    assert str(Path.home()) not in told
    assert str(ROOT) not in told
