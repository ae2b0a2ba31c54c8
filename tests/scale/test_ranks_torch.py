"""Real ranks on this machine: the parts add up, and what slows a rank is found."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import numpy as np
import pytest
from parts import require_part
from project_files import ROOT

torch = require_part("torch")

from tinytorch.errors import RecordError
from tinytorch.scale.accounting import PARTS
from tinytorch.scale.rank_file import LARGEST_FILE
from tinytorch.scale.ranks import main
from tinytorch.scale.ranks_result import RanksProfile, result_of

PROGRAM = ROOT / "tests" / "rank_program.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
PATIENCE_S = 300
"""Ranks import torch, which takes minutes on a machine that is busy enough."""
pytestmark = pytest.mark.slow


def words_of(folder, *arguments, steps=24, options=()):
    """Return the module and all of its options, with the program at their end."""
    recording = ["--json", "--warmup=3", f"--steps={steps}", "--overhead-steps=0", *options]
    program = [f"--folder={folder}", str(PROGRAM), f"--steps={steps + 8}", *arguments]
    return ["-m", "tinytorch.scale.ranks", *recording, *program]


@contextmanager
def started(words, ranks=2, *, before=lambda rank: [], address="127.0.0.1", **variables):
    """Start the ranks of a program without torchrun, which takes a while itself."""
    place = {"MASTER_ADDR": address, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [*before(rank), sys.executable, *words],
            env={**ENVIRONMENT, **place, **{key: each[rank] for key, each in variables.items()}}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def first_output(processes):
    """Wait for all ranks to end well, and return what rank 0 has printed."""
    outputs = [each.communicate(timeout=PATIENCE_S) for each in processes]
    assert [each.returncode for each in processes] == [0] * len(processes), outputs[0][1][-2000:]
    return json.loads(outputs[0][0])


def profiled(folder, *arguments, ranks=2, steps=24, options=()):
    words = words_of(folder, *arguments, steps=steps, options=options)
    with started(words, ranks) as processes:
        return RanksProfile.from_dict(first_output(processes))


def check_accounting(found, ranks, steps):
    assert [each.rank for each in found.ranks] == list(range(ranks))
    assert found.steps == steps
    assert not {each.code for each in found.notes} & {"not-matched", "rank-died", "rank-failed"}
    for each in found.ranks:
        parts = np.array([each.seconds(part) for part in PARTS])
        assert parts.min() >= 0
        np.testing.assert_allclose(parts.sum(axis=0), each.step_s, rtol=0.01)
        assert each.nbytes <= LARGEST_FILE


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("ddp", {"allreduce"}),
        ("fsdp", {"allgather_base", "reduce_scatter_base"}),
        ("tp", {"allreduce"}),
    ],
)
def test_parts_add_up_and_a_slow_layer_is_named(tmp_path, kind, kinds):
    found = profiled(tmp_path, f"--kind={kind}", "--slow=layer", "--seconds=0.06")
    check_accounting(found, 2, 24)
    assert {each.kind for each in found.collectives} == kinds
    assert all(each.bare_s and each.bandwidth > 0 for each in found.collectives)
    assert [(each.rank, each.cause) for each in found.stragglers] == [(1, "compute")]
    assert found.stragglers[0].subject.endswith("2")
    # The other rank waits for most of what this one sleeps.
    assert np.median(found.ranks[0].seconds("waiting")) > 0.03
    assert found.what_ifs[0].speedup.value > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_rank_on_a_device_adds_up(tmp_path, kind):
    found = profiled(tmp_path, f"--kind={kind}", "--device=cuda", ranks=1)
    check_accounting(found, 1, 24)
    assert found.stragglers == ()
    assert all(each.bare_s for each in found.collectives)


@pytest.mark.parametrize("cause", ["input", "host"])
def test_causes_are_told_apart(tmp_path, cause):
    found = profiled(tmp_path, f"--slow={cause}", "--seconds=0.08")
    assert [(each.rank, each.cause) for each in found.stragglers] == [(1, cause)]
    assert np.median(found.ranks[1].seconds(cause)) >= 0.08


def test_four_ranks_add_up(tmp_path):
    trace = tmp_path / "trace.json"
    options = (f"--trace={trace}", f"--html={tmp_path / 'page.html'}")
    check_accounting(profiled(tmp_path, ranks=4, steps=12, options=options), 4, 12)
    events = json.loads(trace.read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {f"rank {rank}" for rank in range(4)}
    assert "allreduce" in (tmp_path / "page.html").read_text()


def test_a_killed_rank_leaves_a_readable_result(tmp_path, capsys):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, *words_of(tmp_path, "--kill-at=20")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    found = RanksProfile.from_dict(json.loads(done.stdout))
    assert "rank 1" in {each.subject for each in found.notes if each.code == "rank-died"}
    assert 10 <= found.steps <= 17
    # Whoever looks later sees the same.
    assert main(["--read", str(tmp_path), "--json"]) == 0
    again = RanksProfile.from_dict(json.loads(capsys.readouterr().out))
    assert again.steps == found.steps


def test_a_rank_that_hangs_is_named_while_it_hangs(tmp_path):
    end, stalls = monotonic() + PATIENCE_S, {}
    with started(words_of(tmp_path, "--hang-at=12", options=("--stall-s=2",))):
        while stalls.keys() != {"rank 0", "rank 1"} and monotonic() < end:
            sleep(0.5)
            with suppress(RecordError):
                found = result_of(tmp_path)
                stalls = {x.subject: str(x) for x in found.notes if x.code == "rank-stalled"}
    assert PROGRAM.name in stalls["rank 1"]
    assert "allreduce" in stalls["rank 0"]
    assert found.steps >= 8


# ---------------------------------------------------------------- two machines in namespaces


def run(*words):
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def namespaces():
    """Two network namespaces, joined by a cable; what the second one sends is limited."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("network namespaces need root, ip and tc")
    names = [f"ranks{os.getpid()}{side}" for side in "ab"]
    try:
        run("ip", "netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        run("ip", "netns", "add", names[1])
        there = ["peer", "name", "cable1", "netns", names[1]]
        run("ip", "link", "add", "cable0", "netns", names[0], "type", "veth", *there)
        for place, name in enumerate(names):
            inside = ["ip", "-n", name]
            run(*inside, "addr", "add", f"10.99.7.{place + 1}/24", "dev", f"cable{place}")
            run(*inside, "link", "set", f"cable{place}", "up")
            run(*inside, "link", "set", "lo", "up")
        limit = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "200ms"]
        run("tc", "-n", names[1], "qdisc", "add", "dev", "cable1", "root", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_a_slow_link_is_told_apart(namespaces, tmp_path):
    words = words_of(tmp_path, "--width=256", steps=20)

    def inside(rank):
        return ["ip", "netns", "exec", namespaces[rank]]

    cables = ["cable0", "cable1"]
    with started(words, before=inside, address="10.99.7.1", GLOO_SOCKET_IFNAME=cables) as processes:
        found = RanksProfile.from_dict(first_output(processes))
    assert [(each.cause, each.subject) for each in found.stragglers] == [("link", "1>0")]
    rates = {(each.sender, each.receiver): each.rate for each in found.links}
    assert rates[1, 0] < 15e6 < rates[0, 1]
    assert found.share("exposed") > 0.3


# ---------------------------------------------------------------- two configurations in turns


def test_configurations_are_compared_in_one_launch():
    with started([str(ROOT / "tests" / "compare_program.py")]) as processes:
        found = first_output(processes)
    assert found["everywhere"] == ["slower", "slower"]
    assert found["result"]["baseline_name"] == "small buckets"
    assert found["result"]["time_ratio"] > 1.5
