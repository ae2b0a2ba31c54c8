import json

import pytest

from tinytorch.cli.main import main
from tinytorch.competition.rounds import read_round


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
    """Make the round `spring`, and give its public and its secret file."""
    monkeypatch.chdir(tmp_path)
    assert main(["compete", "round", "new", "spring", "--to", "submissions"]) == 0
    return tmp_path / "submissions" / "rounds" / "spring.json", tmp_path / "spring.SECRET.json"


def test_a_new_round_publishes_its_commitment_and_keeps_its_seed(made, capsys):
    public, secret = made
    capsys.readouterr()
    assert read_round(public) == read_round(secret).public()
    assert read_round(secret).seed is not None
    assert read_round(secret).seed not in public.read_text("utf-8")
    assert secret.stat().st_mode & 0o077 == 0


def test_the_seed_is_not_printed_before_it_is_revealed(made, capsys):
    public, secret = made
    seed = read_round(secret).seed
    for arguments in (
        ["show", str(secret)],
        ["show", str(public)],
        ["show", str(secret), "--json"],
    ):
        assert main(["compete", "round", *arguments]) == 0
        captured = capsys.readouterr()
        assert seed not in captured.out + captured.err
        assert read_round(public).commitment in captured.out


def test_revealing_puts_the_seed_into_the_public_file_and_may_be_repeated(made, capsys):
    public, secret = made
    for _ in range(2):
        assert main(["compete", "round", "reveal", str(secret), "--to", "submissions"]) == 0
        assert read_round(secret).seed in capsys.readouterr().out
    assert read_round(public) == read_round(secret)


def test_the_public_file_cannot_be_revealed(made, capsys):
    public, _ = made
    assert main(["compete", "round", "reveal", str(public), "--to", "submissions"]) == 2
    assert "has no seed" in capsys.readouterr().err


def test_a_round_is_revealed_where_it_was_made_and_nowhere_else(made, tmp_path, capsys):
    _, secret = made
    assert main(["compete", "round", "reveal", str(secret), "--to", "elsewhere"]) == 2
    assert "elsewhere/rounds/spring.json" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_another_round_of_the_same_name_is_not_revealed(made, capsys):
    public, _ = made
    before = public.read_bytes()
    other = ["--to", "other", "--secret", "other.SECRET.json"]
    assert main(["compete", "round", "new", "spring", *other]) == 0
    capsys.readouterr()
    assert main(["compete", "round", "reveal", "other.SECRET.json", "--to", "submissions"]) == 2
    captured = capsys.readouterr()
    assert "another commitment" in captured.err
    assert read_round("other.SECRET.json").seed not in captured.out + captured.err
    assert public.read_bytes() == before


def test_a_secret_among_the_submissions_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--to", ".", "--json"]
    assert main(["compete", "round", "new", "spring", *arguments]) == 2
    assert "--secret" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_round_that_is_there_is_not_made_again(made, capsys):
    public, secret = made
    before = public.read_bytes(), secret.read_bytes()
    assert main(["compete", "round", "new", "spring", "--to", "submissions"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (public.read_bytes(), secret.read_bytes()) == before


def test_a_file_that_is_no_round_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}", "utf-8")
    assert main(["compete", "round", "show", str(tmp_path / "x.json")]) == 4
    assert "is no round" in capsys.readouterr().err


def test_json_has_the_files_and_the_round_without_its_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--to", "sub", "--secret", "mine.json", "--json"]
    assert main(["compete", "round", "new", "spring", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["secret_file"], found["public_file"]) == ("mine.json", "sub/rounds/spring.json")
    assert found["round"]["seed"] is None


def test_a_round_without_a_step_is_wrong_usage(capsys):
    assert main(["compete", "round"]) == 2
    assert "STEP" in capsys.readouterr().err
