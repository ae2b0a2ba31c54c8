"""Compiling, keeping the result, and threads: what can go wrong, for real, in fresh processes."""

import os
import pty
import subprocess
import sys
import threading

import numpy as np
import pytest
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import compile as numba_compile
from tinytorch.core.kernels.numba.compile import PARALLEL_WORK, compiled

pytestmark = pytest.mark.slow  # most of them start a process of their own

KERNEL = """
import os, sys, threading, warnings
import numba
import numpy as np
from numba import prange
from tinytorch.core.kernels.numba import compile as numba_compile
from tinytorch.core.kernels.numba.compile import compiled

@compiled
def double(x, out):
    for index in prange(x.size):
        out[index] = 2 * x[index]

@compiled
def number(out):
    for index in prange(1):
        out[index] = numba.get_thread_id()

x = np.arange(1000.0)

def is_right():
    out = np.zeros_like(x)
    double(x, out, work=10**9)
    return bool((out == 2 * x).all())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder with the kernel in a module of its own, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "doubling.py").write_text(KERNEL)
    return folder


def run(code: str, folder, **variables: str) -> subprocess.CompletedProcess:
    """Run code in a fresh process that can import everything of the module `doubling`."""
    ours = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = {
        **ours,
        "PYTHONPATH": str(folder),
        "TINYTORCH_CACHE": str(folder / "cache"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", f"from doubling import *\n{code}"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_both_versions_compute_the_same(rng):
    @compiled
    def add_one(x, out):
        for index in numba_compile.numba.prange(x.size):
            out[index] = x[index] + 1

    x = rng.standard_normal(1000)
    for work in (0, 10 * PARALLEL_WORK):
        out = np.zeros_like(x)
        add_one(x, out, work=work)
        np.testing.assert_array_equal(out, x + 1)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_serial_kernel_may_ask_for_its_thread_before_any_thread_was_started(folder, threads):
    code = "out = np.zeros(1); number(out, work=1); print(out)"
    for _ in range(2):  # compiling loads what starts threads; the second process does not compile
        done = run(code, folder, NUMBA_NUM_THREADS=threads)
        assert (done.returncode, done.stdout) == (0, "[0.]\n"), done.stderr


def test_the_next_process_finds_the_machine_code(folder, tmp_path):
    code = "assert is_right(); print(double.parallel.stats.cache_hits, double.serial.signatures)"
    variables = {"NUMBA_NUM_THREADS": "2", "TINYTORCH_CACHE": str(tmp_path)}
    first, second = (run(code, folder, **variables) for _ in range(2))
    assert (first.returncode, first.stdout) == (0, "Counter() []\n"), first.stderr
    assert second.stdout.startswith("Counter({(")


def test_a_folder_that_cannot_be_written_is_told_and_worked_without(folder, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("print(is_right())", folder, TINYTORCH_CACHE=str(tmp_path / "file" / "below"))
    assert done.stdout == "True\n"
    assert "compiled kernels are not kept in" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


def own_folder(cache):
    """Give the folder of the module `doubling`; kernels of the package may have others."""
    kernels = cache / "kernels"
    (made,) = {each.relative_to(kernels).parts[0] for each in kernels.rglob("*doubl*.nb*")}
    return kernels / made


@pytest.mark.parametrize("plant", ["others write", "others write above", "a link", "another user"])
def test_machine_code_that_others_could_have_written_is_not_run(plant, folder, tmp_path):
    variables = {"NUMBA_NUM_THREADS": "1", "TINYTORCH_CACHE": str(tmp_path)}
    assert run("assert is_right()", folder, **variables).returncode == 0
    made = own_folder(tmp_path)
    assert made.stat().st_mode & 0o077 == 0
    if plant == "a link":
        made.rename(tmp_path / "elsewhere")
        made.symlink_to(tmp_path / "elsewhere")
    elif plant == "another user":
        if os.geteuid():
            pytest.skip("only the superuser can give a folder away")
        os.chown(made, 12345, 12345)
    else:
        (made if plant == "others write" else made.parent).chmod(0o777)
    done = run("print(is_right(), double.serial.stats.cache_path)", folder, **variables)
    assert done.stdout == "True None\n", done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert str(made if plant != "others write above" else made.parent) in done.stderr


def test_a_disk_that_is_full_later_is_told_and_worked_without(folder, tmp_path):
    code = """
from numba.core.caching import IndexDataCacheFile
def full(*arguments):
    raise OSError(28, "No space left on device")
IndexDataCacheFile.save = full
print(is_right(), is_right())
"""
    done = run(code, folder, TINYTORCH_CACHE=str(tmp_path), NUMBA_NUM_THREADS="1")
    assert done.stdout == "True True\n", done.stderr
    assert "a compiled kernel cannot be kept ([Errno 28] No space left" in done.stderr


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_a_fork_after_threads_were_started_computes_on_one(folder, layer):
    code = """
assert is_right()
child = os.fork()
if child == 0:
    os._exit(7 if is_right() and not numba_compile.team.is_available else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_right())
"""
    done = run(code, folder, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert done.stdout == "7 True\n", done.stderr


def test_a_fork_before_threads_were_started_may_start_its_own(folder):
    code = """
child = os.fork()
if child == 0:
    os._exit(7 if is_right() and numba_compile.team.is_available else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code, folder, NUMBA_NUM_THREADS="2")
    assert done.stdout == "7\n", done.stderr


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_several_python_threads_may_call_at_once(folder, layer):
    code = """
assert is_right()
wrong = []
def many():
    for _ in range(300):
        if not is_right():
            wrong.append(1)
threads = [threading.Thread(target=many) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(wrong), numba_compile.numba.threading_layer())
"""
    done = run(code, folder, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert done.stdout == f"0 {layer}\n", done.stderr


@pytest.mark.parametrize("name", ["NUMBA_NUM_THREADS", "OMP_NUM_THREADS"])
def test_one_core_starts_no_threads(folder, name):
    code = "print(is_right(), numba_compile.THREADS, double.parallel is double.serial)"
    done = run(code, folder, **{name: "1"})
    assert done.stdout == "True 1 True\n", done.stderr


def test_variables_of_the_environment_stay_as_they_were(folder):
    code = (
        "print(is_right(), os.environ.get('GOMP_SPINCOUNT'), numba_compile.numba.config.CACHE_DIR)"
    )
    assert run(code, folder, NUMBA_NUM_THREADS="2").stdout == "True None \n"


def test_threads_that_cannot_be_started_are_told_and_worked_without(folder):
    done = run("print(is_right())", folder, NUMBA_THREADING_LAYER="tbb", NUMBA_NUM_THREADS="2")
    assert done.stdout == "True\n"
    if "tbb" in done.stderr.lower():  # it is not installed everywhere
        assert "kernels run on one thread" in done.stderr


def test_a_terminal_is_told_what_is_compiled(tmp_path):
    script = tmp_path / "tinytorch_script.py"
    script.write_text(
        KERNEL.replace("@compiled", "")
        + "double.__module__ = 'tinytorch.core.kernels.here'\n"
        + "sys.modules[double.__module__] = sys.modules['__main__']\n"
        + "double = compiled(double)\nassert is_right()\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TINYTORCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(script)], stderr=slave, env=environment, check=False)
    os.close(slave)
    said = os.read(master, 4096).decode()
    os.close(master)
    assert done.returncode == 0, said
    assert "compiling double" in said
    assert said.endswith("\r\x1b[K")  # and the line is taken away again


def test_a_lock_lets_only_one_caller_use_threads_that_are_not_safe():
    team = numba_compile._Team()
    team.is_started, team._one_at_a_time = True, threading.Lock()
    assert team.run(lambda: "parallel", lambda: "serial", ()) == "parallel"
    with team._one_at_a_time:
        assert team.run(lambda: "parallel", lambda: "serial", ()) == "serial"
