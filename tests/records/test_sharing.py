"""Records copied between stores, folders, PostgreSQL and MLflow: once, and resumable."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from example_records import record, series
from parts import require_part
from project_files import ROOT

from tinytorch.cli.main import main
from tinytorch.errors import RecordError, SettingError
from tinytorch.records import sharing
from tinytorch.records.exchange import import_jsonl
from tinytorch.records.sharing import Copied, RecordFolder, copy_records, opened_place
from tinytorch.records.store import RecordStore


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "mine.sqlite") as opened:
        opened.add_all([*series(range(1, 8)), record(name="mlp", notes=("a doubt",), run="r")])
        yield opened


@pytest.fixture(params=["folder", "file", "postgres"])
def place(request, tmp_path):
    """Give the name of an empty place of each kind."""
    if request.param == "postgres":
        return request.getfixturevalue("database")
    return str(tmp_path / {"folder": "shared/records", "file": "theirs.sqlite"}[request.param])


def test_what_is_pushed_can_be_pulled_by_another(store, place, tmp_path):
    with opened_place(place) as other:
        assert copy_records(store, other) == Copied(8, 0)
    with opened_place(place) as other, RecordStore(tmp_path / "new.sqlite") as new:
        assert copy_records(other, new) == Copied(8, 0)
        assert set(new.find()) == set(store.find())
        assert new.check() == ()


def test_pushing_again_copies_what_is_new_only(store, place):
    with opened_place(place) as other:
        copy_records(store, other)
        assert copy_records(store, other) == Copied(0, 8)
        store.add(record(hours=99))
        assert copy_records(store, other) == Copied(1, 8)
        assert sorted(other.hashes()) == sorted(store.hashes())


def test_a_copy_that_was_cut_off_goes_on(store, place, monkeypatch):
    monkeypatch.setattr(sharing, "CHUNK", 3)

    class Interrupted:
        def __init__(self, place):
            self.place, self.path, self.left = place, place.path, 2

        def known(self, hashes):
            return self.place.known(hashes)

        def add_all(self, records):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return self.place.add_all(records)

    with opened_place(place) as other:
        with pytest.raises(KeyboardInterrupt):
            copy_records(store, Interrupted(other))
        assert len(other.hashes()) == 3
        assert copy_records(store, other) == Copied(5, 3)


def test_a_damaged_record_is_left_out_and_counted(store, place):
    store._database.connection.execute("UPDATE records SET body = '{}' WHERE id = 2")
    with opened_place(place) as other:
        assert copy_records(store, other) == Copied(7, 0, 1)
        assert len(other.hashes()) == 7


def test_many_that_write_into_a_folder_at_once_lose_nothing(tmp_path):
    records = [record(hours=n) for n in range(80)]

    def write(number):
        folder = RecordFolder(tmp_path / "shared")
        mixed = random.Random(number).sample(records, len(records))
        for start in range(0, 80, 10):
            folder.add_all(mixed[start : start + 10])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = RecordFolder(tmp_path / "shared")
    assert sorted(folder.hashes()) == sorted(each.hash for each in records), "each once"
    assert set(folder.get_all(folder.hashes())) == set(records)


def test_a_file_of_a_folder_can_be_imported(store, tmp_path):
    folder = RecordFolder(tmp_path / "shared")
    copy_records(store, folder)
    (file,) = (tmp_path / "shared").iterdir()
    with RecordStore(tmp_path / "new.db") as new:
        assert import_jsonl(new, file).added == 8


def test_what_is_broken_in_a_folder_is_skipped(store, tmp_path):
    folder = RecordFolder(tmp_path / "shared")
    copy_records(store, folder)
    (file,) = (tmp_path / "shared").iterdir()
    lines = file.read_text().splitlines()
    changed = lines[1].replace("0.002", "0.003").replace('"name":"gpt"', '"name":"gpu"')
    file.write_text("\n".join([lines[0], changed, "{no json", *lines[2:]]) + "\n")
    reader = RecordFolder(tmp_path / "shared")
    with RecordStore(tmp_path / "new.db") as new:
        assert copy_records(reader, new) == Copied(7, 0, 1)
    assert len(reader.refused) == 2


@pytest.mark.parametrize("name", ["mysql://h/d", "s3://bucket"])
def test_other_schemes_are_refused(name):
    with pytest.raises(SettingError, match="is no place for records; give"), opened_place(name):
        pass


# ---------------------------------------------------------------- the command


def run(capsys, *arguments):
    code = main(["history", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_push_and_pull_are_commands(store, place, tmp_path, capsys):
    code, shown, _ = run(capsys, "push", "--to", place, "--store", store.path, "--json")
    assert (code, json.loads(shown)["added"], json.loads(shown)["known"]) == (0, 8, 0)
    new = tmp_path / "new.sqlite"
    code, shown, _ = run(capsys, "pull", "--from", place, "--store", new, "--json")
    assert (code, json.loads(shown)["added"]) == (0, 8)
    code, shown, _ = run(capsys, "pull", "--from", place, "--store", new)
    assert (code, "0 records added" in shown, "8 known" in shown) == (0, True, True)


@pytest.mark.parametrize(
    "arguments", [["push"], ["pull"], ["push", "--from", "x"], ["--to", "x"],
                  ["pull", "--from", "x", "--to", "y"], ["gpt", "--to", "x"]]
)  # fmt: skip
def test_half_a_copy_is_wrong_usage(store, arguments, capsys):
    code, _, messages = run(capsys, *arguments, "--store", store.path)
    assert code == 2
    assert "push --to PLACE" in messages


def test_the_history_of_a_database_is_shown_as_that_of_a_file(store, postgres, capsys):
    address = postgres.network_address(postgres.new_database())
    code, shown, _ = run(capsys, "push", "--to", address, "--store", store.path, "--json")
    assert code == 0
    outputs = [shown]
    for arguments in (["gpt"], [], ["--check"], ["--show", store.hashes()[0][:12]]):
        code, shown, messages = run(capsys, *arguments, "--store", address, "--json")
        assert code == 0
        outputs += [shown, messages]
        own = json.loads(run(capsys, *arguments, "--store", store.path, "--json")[1])
        theirs = json.loads(shown)
        assert (
            theirs.pop("store")
            == address.partition("owner:")[0] + "owner:***@" + (address.rpartition("@")[2])
        )
        own.pop("store")
        assert theirs == own
    wrong = postgres.network_address("nowhere", password="a wr0ng/password")
    code, shown, messages = run(capsys, "--store", wrong, "--json")
    assert code == 4
    outputs += [shown, messages]
    secrets = [address.partition("owner:")[2].partition("@")[0], "a wr0ng", "wr0ng%2Fpass"]
    assert not any(secret in output for secret in secrets for output in outputs)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_password_leaves_the_list_of_processes(postgres):
    address = postgres.network_address(postgres.new_database())
    password = address.partition("owner:")[2].partition("@")[0]
    command = [sys.executable, "-m", "tinytorch.cli.main", "history", "--store", address]
    code = (
        "import sys; from tinytorch.cli import main\n"
        "code = main.main()\n"
        "sys.stdout.write(open('/proc/self/cmdline').read())\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "history", "--store", address]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "No records" in ran.stdout
    assert "owner:" in ran.stdout
    assert password not in ran.stdout


# ---------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def tracking_server(tmp_path_factory):
    """Give the URI of a real tracking server."""
    require_part("mlflow.server")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{folder}/runs.db"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port]
    command += ["--backend-store-uri", store, "--artifacts-destination", folder / "artifacts"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*map(str, command), "--workers", "1"],
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health").read()
            break
        except OSError:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
    yield address
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=30)


@pytest.mark.slow
def test_records_are_runs_of_mlflow(store, tracking_server, tmp_path, capsys):
    from mlflow import MlflowClient

    place = f"mlflow:{tracking_server}"
    code, shown, _ = run(capsys, "push", "--to", place, "--store", store.path, "--json")
    assert (code, json.loads(shown)["added"]) == (0, 8)
    client = MlflowClient(tracking_uri=tracking_server)
    experiment = client.get_experiment_by_name("tinytorch").experiment_id
    runs = {each.data.tags["tinytorch.hash"]: each for each in client.search_runs([experiment])}
    assert set(runs) == set(store.hashes())
    for each in store.find():
        logged, samples = runs[each.hash], each.samples["latency"]
        interval = samples.median_interval()
        assert logged.data.metrics["latency"] == samples.median
        assert logged.data.metrics["latency/low"] == interval.low
        assert logged.data.metrics["latency/high"] == interval.high
        assert logged.data.metrics["latency/n"] == samples.count
        assert logged.data.params == {"batch": "8", "device": "cpu"}
        assert logged.info.run_name == each.name
    run_id = runs[store.hashes()[0]].info.run_id
    page = client.download_artifacts(run_id, "report.html", str(tmp_path))
    with open(page, encoding="utf-8") as opened:
        assert store.hashes()[0] in opened.read()
    # One that was begun and not finished is completed; nothing is doubled.
    client.set_terminated(run_id, "KILLED")
    code, shown, _ = run(capsys, "push", "--to", place, "--store", store.path, "--json")
    assert (json.loads(shown)["added"], json.loads(shown)["known"]) == (1, 7)
    assert len(client.search_runs([experiment])) == 8
    new = tmp_path / "new.sqlite"
    code, shown, _ = run(capsys, "pull", "--from", place, "--store", new, "--json")
    assert (code, json.loads(shown)["added"]) == (0, 8)
    with RecordStore(new) as pulled:
        assert set(pulled.find()) == set(store.find())


@pytest.mark.slow
def test_a_tracking_server_that_is_away_is_one_line_without_secrets(store, capsys):
    require_part("mlflow")
    place = "mlflow:http://ann:s3cr3t@127.0.0.1:9/"
    code, shown, messages = run(capsys, "push", "--to", place, "--store", store.path)
    assert code == 4
    assert "s3cr3t" not in shown + messages
    (line,) = [each for each in messages.splitlines() if each.startswith("tinytorch: error")]
    assert "mlflow:http://ann:***@127.0.0.1:9/" in line


def test_without_the_extra_it_says_what_to_install(store, monkeypatch):
    from parts import hide_package

    hide_package(monkeypatch, "mlflow")
    with pytest.raises(ImportError, match="mlflow-skinny"), opened_place("mlflow:http://x"):
        pass
    hide_package(monkeypatch, "psycopg")
    with pytest.raises(ImportError, match="psycopg"):
        RecordStore("postgresql://x/y")


def test_a_folder_that_cannot_be_written_says_so(store, tmp_path):
    (tmp_path / "file").touch()
    folder = RecordFolder(tmp_path / "file" / "shared")
    with pytest.raises(RecordError, match="cannot be"):
        copy_records(store, folder)
