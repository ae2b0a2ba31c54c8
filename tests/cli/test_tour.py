import json

from tinytorch import __version__
from tinytorch.cli.main import main


def test_the_tour_names_the_version(capsys):
    assert main(["tour"]) == 0
    assert __version__ in capsys.readouterr().out


def test_the_tour_speaks_json(capsys):
    assert main(["tour", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["command"] == "tour"
    assert result["version"] == __version__


def test_a_quiet_tour_leaves_stderr_alone(capsys):
    assert main(["tour", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
