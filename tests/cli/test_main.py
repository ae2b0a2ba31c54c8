import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from project_files import ROOT

from tinytorch import __version__
from tinytorch.cli import main as main_module
from tinytorch.cli.console import ExitCode
from tinytorch.cli.main import COMMANDS, Command, build_parser, main
from tinytorch.errors import ShapeError, TargetError


@pytest.fixture
def add_command(monkeypatch):
    """Give a function that makes ``tinytorch probe`` run what it is handed."""

    def add(run):
        module = types.ModuleType("probe_command")
        module.add_arguments = lambda parser: None
        module.run = run
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(main_module.COMMANDS, "probe", Command("probe_command", "probe"))

    return add


def raising(error):
    def run(options, output):
        raise error

    return run


def start_python(code, **settings):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def probe_program(body, arguments=("probe",)):
    """Give a program in which ``tinytorch probe`` does what `body` says."""
    return f"""
import sys, time, types
from tinytorch.cli import main as cli
def run(options, output):
    {body}
    return 0
probe = types.ModuleType("probe_command")
probe.add_arguments, probe.run = lambda parser: None, run
sys.modules["probe_command"] = probe
cli.COMMANDS["probe"] = cli.Command("probe_command", "probe")
sys.exit(cli.main({list(arguments)!r}))
"""


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tinytorch {__version__}\n"


def test_help_lists_every_command_with_its_summary(capsys):
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {command.summary}" in shown for name, command in COMMANDS.items())


def test_without_a_command_the_help_goes_to_stderr(capsys):
    assert main([]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "commands:" in captured.err


def test_a_typo_gets_the_near_command(capsys):
    assert main(["tuor"]) == ExitCode.USAGE
    assert "no command 'tuor'; did you mean 'tour'?" in capsys.readouterr().err


def test_an_unlike_word_gets_the_list_of_commands(capsys):
    assert main(["xyzzy"]) == ExitCode.USAGE
    assert "no command 'xyzzy'; there are tour" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options(name):
    needed = {
        "profile": ["mlp"],
        "new": ["yours.py"],
        "predict": ["mlp", "--at", "8"],
        "advise": ["mlp"],
        "bench": ["suite.toml"],
        "sweep": ["suite.toml"],
        "gate": ["--against", "main"],
        "report": ["last"],
        "compete": ["rules"],
        "export": ["mlp"],
        "monitor": ["report", "snapshot.json"],
    }.get(name, [])
    options = build_parser(name).parse_args([name, *needed, "--json", "--quiet", "--seed", "7"])
    assert (options.command, options.json, options.quiet, options.seed) == (name, True, True, 7)


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", ""])
def test_a_seed_is_a_whole_number(seed, capsys):
    assert main(["tour", f"--seed={seed}"]) == ExitCode.USAGE
    assert "argument --seed" in capsys.readouterr().err


def test_the_code_of_the_command_is_the_code_of_the_program(add_command):
    add_command(lambda options, output: ExitCode.INCONCLUSIVE)
    assert main(["probe"]) == ExitCode.INCONCLUSIVE


def test_an_error_is_one_line_without_traceback(add_command, capsys, monkeypatch):
    monkeypatch.delenv("TINYTORCH_DEBUG", raising=False)
    add_command(raising(ShapeError("saw (2, 3);\n   give (3, 2)")))
    assert main(["probe"]) == ExitCode.INVALID
    captured = capsys.readouterr()
    assert captured.err == "tinytorch: error: saw (2, 3); give (3, 2)\n"
    assert captured.out == ""


def test_a_bad_target_is_wrong_usage(add_command):
    add_command(raising(TargetError("no such target")))
    assert main(["probe"]) == ExitCode.USAGE


def test_debugging_shows_the_traceback(add_command, capsys, monkeypatch):
    monkeypatch.setenv("TINYTORCH_DEBUG", "1")
    add_command(raising(ShapeError("saw (2, 3)")))
    assert main(["probe"]) == ExitCode.INVALID
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("tinytorch: error: saw (2, 3)\n")


def test_a_crash_is_not_a_regression(add_command, capsys):
    add_command(raising(ZeroDivisionError("our mistake")))
    assert main(["probe"]) == ExitCode.CRASHED
    assert "ZeroDivisionError: our mistake" in capsys.readouterr().err


def test_ctrl_c_is_a_short_word(add_command, capsys):
    add_command(raising(KeyboardInterrupt()))
    assert main(["probe"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip() == "interrupted"


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_a_real_ctrl_c_ends_with_130():
    # In the background of a shell SIGINT is ignored, and programs inherit that from us.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code = listening + probe_program('print("ready", flush=True); time.sleep(600)')
    with start_python(code) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert messages.strip() == "interrupted"


@pytest.mark.parametrize("arguments", [["probe"], ["probe", "--json"], ["--help"]])
def test_a_closed_pipe_gives_no_traceback(arguments):
    waiting = "import sys; sys.stdin.readline()\n"
    code = waiting + probe_program('output.result({}, "shown")', arguments)
    # Unbuffered, argparse would swallow the failure of --help itself.
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with start_python(code, stdin=subprocess.PIPE, env=environment) as process:
        process.stdout.close()  # The reader leaves before a line is written.
        process.stdin.write("go\n")
        process.stdin.close()
        messages = process.stderr.read()
    assert process.returncode == ExitCode.PIPE_CLOSED
    assert "Traceback" not in messages
    assert "BrokenPipe" not in messages


def test_a_letter_that_the_stream_lacks_is_replaced():
    code = probe_program('output.result({}, "2× faster")')
    with start_python(code, env=os.environ | {"PYTHONIOENCODING": "ascii"}) as process:
        shown, messages = process.communicate()
    assert (process.returncode, messages) == (0, "")
    assert shown == "2? faster\n"


def test_python_dash_m_is_the_same_program():
    ran = subprocess.run(
        [sys.executable, "-m", "tinytorch", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, f"tinytorch {__version__}\n")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no full device here")
def test_a_full_output_is_said_and_files_are_still_written(tmp_path):
    report = tmp_path / "profile.html"
    command = [sys.executable, "-m", "tinytorch", "profile", "mlp", "--runs", "3"]
    options = ["--budget", "0.1", "--no-ceilings", "--html", str(report)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, *options], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "the result could not be printed: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == ExitCode.INVALID
    assert report.stat().st_size > 10_000
