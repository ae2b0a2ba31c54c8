import json

from parts import require_part

from tinytorch.cli.main import main


def test_a_key_is_made_once_and_only_its_public_half_is_shown(tmp_path, capsys):
    require_part("cryptography")
    file = tmp_path / "organiser.key"
    assert main(["compete", "key", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["public_key"].startswith("ssh-ed25519 ")
    assert found["public_key"] in (tmp_path / "organiser.key.pub").read_text("utf-8")
    secret = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0

    assert main(["compete", "key", str(file)]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert file.read_bytes() == secret


def test_a_round_names_the_key_that_signs_it(tmp_path, monkeypatch, capsys):
    require_part("cryptography")
    monkeypatch.chdir(tmp_path)
    assert main(["compete", "key", "k", "--json"]) == 0
    public_key = json.loads(capsys.readouterr().out)["public_key"]
    arguments = ["--to", "submissions", "--key", "k", "--json"]
    assert main(["compete", "round", "new", "spring", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["round"]["public_key"] == public_key
