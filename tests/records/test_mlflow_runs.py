"""Records as runs of MLflow, on a client of a few lines; the real one is asked in test_sharing."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from example_records import record, series

from tinytorch.errors import RecordError
from tinytorch.records import mlflow_runs
from tinytorch.records.location import Address
from tinytorch.records.mlflow_runs import HASH_TAG, MlflowRuns, metrics_of, parameters_of
from tinytorch.records.sharing import Copied, copy_records, opened_place
from tinytorch.records.store import RecordStore

SECRET = "s3cr3t"


class Page(list):
    token = None


class Client:
    """Holds experiments and runs as a tracking server does, two runs to a page."""

    def __init__(self):
        self.experiments, self.runs, self.page = {}, {}, 2

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id=f"id of {name}")
        return self.experiments[name].experiment_id

    def create_run(self, experiment, *, start_time, tags, run_name):
        info = SimpleNamespace(run_id=f"run {len(self.runs)}", name=run_name, start=start_time)
        run = SimpleNamespace(
            info=info, data=SimpleNamespace(tags=tags), status="RUNNING", files={}
        )
        self.runs[info.run_id] = run
        return run

    def log_batch(self, run_id, *, metrics, params):
        self.runs[run_id].metrics, self.runs[run_id].params = dict(metrics), dict(params)

    def log_text(self, run_id, text, name):
        self.runs[run_id].files[name] = text

    def set_terminated(self, run_id, status, *, end_time):
        self.runs[run_id].status = status

    def search_runs(self, experiments, *, filter_string, max_results, order_by, page_token):
        wanted = filter_string.rpartition("= '")[2].rstrip("'")
        found = [
            run for run in self.runs.values() if wanted in (run.status, run.data.tags.get(HASH_TAG))
        ]
        start = int(page_token or 0)
        page = Page(found[start : start + self.page])
        page.token = str(start + self.page) if start + self.page < len(found) else None
        return page

    def download_artifacts(self, run_id, name, folder):
        path = Path(folder) / name
        path.write_text(self.runs[run_id].files[name], "utf-8")
        return str(path)


@pytest.fixture
def client(monkeypatch):
    client = Client()
    module = SimpleNamespace(MlflowClient=lambda tracking_uri: client)
    entities = SimpleNamespace(
        Metric=lambda name, value, moment, step: (name, value),
        Param=lambda name, value: (name, value),
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in mlflow_runs.CLIENT_SETTINGS:
        monkeypatch.setenv(name, "0")
    return client


def runs(**options):
    return MlflowRuns(Address.of(f"mlflow:http://ann:{SECRET}@h:1"), **options)


def test_what_is_logged_is_read_back(client):
    records = series([1, 2, 3])
    assert runs().add_all(records) == tuple(each.hash for each in records)
    again = runs()
    hashes = [each.hash for each in records]
    assert again.hashes() == hashes
    assert again.known([*hashes[:2], "other"]) == set(hashes[:2])
    assert again.get_all(hashes) == records


def test_each_run_has_its_numbers_settings_tags_and_page(client):
    one = record(notes=("a doubt", "another"))
    runs(report=lambda given: f"page of {given.hash}").add_all([one])
    (run,) = client.runs.values()
    assert (run.status, run.info.name) == ("FINISHED", "gpt")
    assert run.info.start == 1772323200000
    assert (run.metrics, run.params) == (metrics_of(one), parameters_of(one))
    assert run.files[mlflow_runs.REPORT_FILE] == f"page of {one.hash}"
    assert run.data.tags[HASH_TAG] == one.hash
    assert run.data.tags[mlflow_runs.MACHINE_TAG] == one.machine
    assert run.data.tags["mlflow.note.content"].splitlines() == ["- a doubt", "- another"]


def test_a_record_that_is_there_is_not_logged_again(client):
    place = runs()
    place.add_all([record(), record()])
    runs().add_all([record()])
    assert len(client.runs) == 1
    assert mlflow_runs.REPORT_FILE not in client.runs["run 0"].files


def test_a_run_that_was_begun_and_not_finished_is_completed(client):
    runs().add_all([record()])
    client.runs["run 0"].status = "KILLED"
    assert runs().hashes() == []
    runs().add_all([record()])
    assert [each.status for each in client.runs.values()] == ["FINISHED"]


def test_what_is_damaged_and_runs_of_others_are_left_out(client):
    runs().add_all(series([1, 2]))
    client.runs["run 0"].files[mlflow_runs.RECORD_FILE] = "{}"
    theirs = client.create_run("x", start_time=0, tags={}, run_name="theirs")
    theirs.status = "FINISHED"
    place = runs()
    assert len(place.hashes()) == 2
    assert place.get_all(place.hashes()) == series([1, 2])[1:]


def test_an_experiment_that_another_process_makes_meanwhile_is_used(client):
    make = client.create_experiment

    def another_is_faster(name):
        make(name)
        raise ValueError("it exists")

    client.create_experiment = another_is_faster
    assert runs().add_all([record()]) == (record().hash,)


def test_what_the_client_raises_is_one_line_without_secrets(client):
    def fail(name):
        raise ValueError(f"no way\nto http://ann:{SECRET}@h:1")

    client.create_experiment = fail
    with pytest.raises(RecordError) as raised:
        runs()
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_place_is_opened_by_its_address_and_copied_to(client, tmp_path):
    with RecordStore(tmp_path / "own.db") as store:
        store.add_all(series([1, 2]))
        with opened_place(f"mlflow:http://ann:{SECRET}@h:1", report=lambda given: "page") as place:
            assert copy_records(store, place) == Copied(2, 0)
    assert isinstance(place, MlflowRuns)
    assert [run.files[mlflow_runs.REPORT_FILE] for run in client.runs.values()] == ["page"] * 2
    assert SECRET not in str(place.path)


def test_nested_settings_have_dots_and_odd_letters_are_replaced():
    settings = {"a": {"b": {"c": 1}, "d": "x" * 999}, "e(f)": True}
    assert parameters_of(record(settings=settings)) == {
        "a.b.c": "1",
        "a.d": "x" * mlflow_runs.LONGEST_VALUE,
        "e_f_": "true",
    }


def test_a_single_value_has_no_interval():
    from tinytorch.measure.samples import Samples

    one = record(samples={"p99, s": Samples("p99, s", (2.0,), "s")})
    assert metrics_of(one) == {"p99_ s": 2.0, "p99_ s/n": 1}
