import json

import pytest
from parts import require_part

from tinytorch.cli import options as written_files
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import main
from tinytorch.profiling import model_profile

QUICK = ["--runs", "3", "--no-ceilings"]

FACTORIES = """
import numpy as np
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor

X = Tensor(np.ones((2, 4), np.float32))

class Broken(Module):
    def forward(self, x):
        raise RuntimeError("no more")

def good():
    return Sequential(Linear(4, 4, rng=0), Linear(4, 2, rng=0)), X

def broken():
    return Sequential(Linear(4, 4, rng=0), Broken()), X

def elsewhere():
    import torch
    return torch.nn.Linear(4, 4), torch.ones(2, 4, device="meta")
"""


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """Make measuring an error, for what must be refused before it."""

    def measure(*_, **__):
        raise AssertionError("measured before the check")

    monkeypatch.setattr(model_profile, "profile_workload", measure)


def test_a_profile_is_shown(capsys):
    assert main(["profile", "mlp", *QUICK, "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(" per call")
    assert "\nProfile of mlp\nSequential, core, cpu, inference, float32, batch 1\n" in shown
    assert "\nLayers  " in shown
    assert "layers.0 Linear" in shown


def test_json_has_the_whole_profile(capsys):
    assert main(["profile", "mlp", *QUICK, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert result["command"] == "profile"
    (profile,) = result["profiles"]
    assert profile["costs"]["macs"] == 784 * 128 + 128 * 64 + 64 * 10
    assert profile["latency"]["count"] == 3
    assert profile["facts"]["bottleneck"]["name"]
    assert "estimates" not in result


def test_several_targets_stand_side_by_side(capsys, factory):
    assert main(["profile", "mlp", factory("good"), *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "latency"]
    assert lines[1].startswith("mlp")
    assert len([line for line in lines if "us" in line or "ms" in line]) >= 2


def test_several_targets_are_all_in_the_json(capsys, factory):
    assert main(["profile", "mlp", factory("good"), *QUICK, "--json"]) == 0
    profiles = json.loads(capsys.readouterr().out)["profiles"]
    assert [profile["costs"]["macs"] for profile in profiles] == [109184, 48]


def test_training_profiles_a_step(capsys):
    options = ["--training", "--optimizer", "sgd", "--json"]
    assert main(["profile", "mlp", *QUICK, *options]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["mode"] == "training"
    assert {"<backward>", "<update>"} <= {layer["path"] for layer in profile["layers"]}


def test_training_without_an_optimizer_has_no_update(capsys):
    options = ["--training", "--optimizer", "none", "--json"]
    assert main(["profile", "mlp", *QUICK, *options]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert "<update>" not in {layer["path"] for layer in profile["layers"]}


def test_depth_expand_and_top_shape_what_is_shown(capsys):
    assert main(["profile", "gpt", *QUICK, "--depth", "1", "--top", "1"]) == 0
    short = capsys.readouterr().out
    assert main(["profile", "gpt", *QUICK, "--expand"]) == 0
    long = capsys.readouterr().out
    assert "blocks.0 ... 3 (4x)" in layers_shown(short)
    assert "q_proj" not in layers_shown(short)
    assert "  blocks.3 TransformerBlock" in layers_shown(long)


def layers_shown(report):
    """The table of layers alone: the bottleneck above it may be any layer."""
    return report.partition("\nLayers  ")[2].partition("\n\n")[0]


def test_traces_are_written(capsys, tmp_path):
    trace, flames = tmp_path / "trace.json", tmp_path / "flames.json"
    arguments = ["--trace", str(trace), "--speedscope", str(flames)]
    assert main(["profile", "mlp", *QUICK, *arguments]) == 0
    assert "traceEvents" in json.loads(trace.read_text("utf-8"))
    assert "speedscope" in json.loads(flames.read_text("utf-8"))["$schema"]
    assert f"wrote {trace}" in capsys.readouterr().err


def test_an_estimate_for_another_device_is_added(capsys):
    arguments = ["--on", "h100", "--price-per-hour", "2.5"]
    assert main(["profile", "mlp", *QUICK, *arguments]) == 0
    assert "On NVIDIA H100 SXM: an estimate, not a measurement" in capsys.readouterr().out
    assert main(["profile", "mlp", *QUICK, *arguments, "--json"]) == 0
    (estimate,) = json.loads(capsys.readouterr().out)["estimates"]
    assert estimate["is_estimate"] is True
    assert estimate["cost_per_million_calls_at_best"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "--runs 0; it must be at least 1"),
        (["--depth", "-1"], "--depth -1; it must be at least 0"),
        (["--top", "0"], "--top 0; it must be at least 1"),
        (["--budget", "0"], "--budget 0"),
        (["--on", "abacus"], "no description of device 'abacus'; there are h200"),
        (["--price-per-hour", "1"], "--price-per-hour needs --on"),
        (["--on", "t4", "--price-per-hour", "-1"], "--price-per-hour -1"),
    ],
)
@pytest.mark.usefixtures("nothing_is_measured")
def test_wrong_settings_are_one_line(capsys, arguments, message):
    assert main(["profile", "mlp", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_path_that_cannot_be_written_is_refused_before_measuring(capsys, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    assert main(["profile", "mlp", "--trace", str(tmp_path)]) == ExitCode.USAGE
    assert "is a folder" in capsys.readouterr().err
    inside = tmp_path / "file" / "trace.json"
    assert main(["profile", "mlp", "--speedscope", str(inside)]) == ExitCode.USAGE
    assert "trace.json cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_trace_holds_one_model(capsys, tmp_path):
    arguments = ["--trace", str(tmp_path / "trace.json")]
    assert main(["profile", "mlp", "cnn", *arguments]) == ExitCode.USAGE
    assert "--trace needs a single target" in capsys.readouterr().err


def test_a_report_is_written(capsys, tmp_path):
    file = tmp_path / "mlp.html"
    assert main(["profile", "mlp", *QUICK, "--html", str(file)]) == 0
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert f"wrote {file}" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "--open"], "--open shows the report that --html FILE writes"),
        (["mlp", "cnn", "--html", "x.html"], "--html needs a single target"),
        (["mlp", "--html", "."], ". is a folder"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_measuring(capsys, arguments, message):
    assert main(["profile", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_disk_that_fills_up_meanwhile_is_one_line(capsys, tmp_path, monkeypatch):
    def fails(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written_files, "write_atomically", fails)
    arguments = ["--trace", str(tmp_path / "trace.json")]
    assert main(["profile", "mlp", *QUICK, *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "cannot be written: No space left on device" in captured.err
    assert "layers.0" in captured.out  # what was measured is not lost


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize("target", ["nowhere.py:model", "no.such.module:model", "mlq"])
def test_a_target_that_gives_nothing_is_wrong_usage(capsys, target):
    assert main(["profile", "mlp", target]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("tinytorch: error: ")


def test_a_layer_that_raises_is_named_and_nothing_is_measured(capsys, factory):
    assert main(["profile", factory("broken"), *QUICK]) == ExitCode.INVALID
    error = capsys.readouterr().err
    assert "layer 'layers.1' (Broken) raised RuntimeError: no more" in error
    assert error.count("\n") == 1


def test_inputs_on_another_device_are_wrong_usage(capsys, factory):
    require_part("torch")
    assert main(["profile", factory("elsewhere"), *QUICK]) == ExitCode.USAGE
    assert "is on meta, the model is on cpu" in capsys.readouterr().err


def test_what_is_finished_is_shown_when_a_later_target_fails(capsys, factory):
    assert main(["profile", "mlp", factory("broken"), *QUICK]) == ExitCode.INVALID
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("mlp ")
    assert "raised RuntimeError" in captured.err


def test_advice_follows_the_tables(capsys):
    assert main(["profile", "mlp", "--runs", "3", "--no-ceilings", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (advice,) = result["advice"]
    assert all(each["evidence"] for each in advice)
    assert main(["profile", "mlp", "--runs", "3", "--no-ceilings", "--top", "1"]) == 0
    shown = capsys.readouterr().out.partition("\nSuggestions ")[2]
    assert "1. " in shown
    assert "2. " not in shown
