"""Records as runs of MLflow: parameters, metrics with their intervals, and the page of each."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tinytorch.errors import MissingPartError, RecordError
from tinytorch.records.location import MLFLOW, Address
from tinytorch.records.record import Record, canonical_json, parse_record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

EXPERIMENT = "tinytorch"
HASH_TAG, KIND_TAG, MACHINE_TAG = "tinytorch.hash", "tinytorch.kind", "tinytorch.machine"
COMMIT_TAG, CREATED_TAG = "tinytorch.commit", "tinytorch.created_at"
RECORD_FILE, REPORT_FILE = "record.json", "report.html"
INSTALL = 'runs of MLflow need mlflow-skinny: pip install "tinytorch-perf[mlflow]"'
NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)
"""What MLflow does not take in the name of a metric or a parameter."""
LONGEST_VALUE = 500
MOST_PARAMETERS = 100
CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    # It would print the address with its password, on stdout.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PAGE = 1000


class MlflowRuns:
    """The runs of the experiment `tinytorch` on a tracking server, one for each record.

    A run counts once it is finished: one that was begun by a process that was killed is completed
    by the next. MLflow has no unique keys, so two processes that push the same record at the same
    moment may make two runs of it; read back, they are one record.
    """

    def __init__(self, address: Address, *, report: Callable[[Record], str] | None = None) -> None:
        self.path = address
        self._report = report
        for name, value in CLIENT_SETTINGS.items():
            os.environ.setdefault(name, value)
        self._client: MlflowClient = self._asked(self._connect)
        self._experiment: str = self._asked(self._find_experiment)
        self._runs: dict[str, str] | None = None

    def hashes(self) -> list[str]:
        """Return the hashes of all records, the first that was pushed first."""
        return list(self._finished())

    def known(self, hashes: Iterable[str]) -> frozenset[str]:
        """Return those hashes of which there are finished runs."""
        finished = self._finished()
        return frozenset(hash for hash in hashes if hash in finished)

    def get_all(self, hashes: Sequence[str]) -> list[Record]:
        """Return the records of these hashes; what is damaged is left out."""
        found = []
        for hash in hashes:
            text = self._asked(partial(self._downloaded, self._finished()[hash]))
            try:
                found.append(parse_record(text, expected_hash=hash))
            except RecordError:
                continue
        return found

    def add_all(self, records: Iterable[Record]) -> tuple[str, ...]:
        """Log a run for each record, and return their hashes."""
        return tuple(self._asked(partial(self._log, record)) for record in records)

    # ------------------------------------------------------------ the server

    def _connect(self) -> MlflowClient:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise MissingPartError(INSTALL) from error
        return MlflowClient(tracking_uri=self.path.full[len(MLFLOW) :])

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(EXPERIMENT))
        except Exception:
            found = self._client.get_experiment_by_name(EXPERIMENT)
            if found is None:  # another process was not faster
                raise
            return str(found.experiment_id)

    def _asked(self, run: Callable[[], T]) -> T:
        """Turn whatever the client raises into one line without secrets."""
        try:
            return run()
        except (RecordError, MissingPartError):
            raise
        except Exception as error:  # of MLflow, requests and urllib3
            words = self.path.safe_words(error)
        raise RecordError(
            f"{self.path} cannot be used; check the address and that the server runs ({words})"
        )

    def _finished(self) -> dict[str, str]:
        """Return the finished runs: hash of the record to id of the run."""
        if self._runs is None:
            runs = self._asked(lambda: list(self._found("attributes.status = 'FINISHED'")))
            self._runs = {each.data.tags[HASH_TAG]: each.info.run_id for each in runs}
        return self._runs

    def _found(self, condition: str) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self._experiment],
                filter_string=condition,
                max_results=PAGE,
                order_by=["attributes.end_time ASC"],
                page_token=token,
            )
            yield from (each for each in page if HASH_TAG in each.data.tags)
            token = page.token
            if not token:
                return

    # ------------------------------------------------------------ one record

    def _log(self, record: Record) -> str:
        from mlflow.entities import Metric, Param

        hash, moment = record.hash, _milliseconds(record)
        if hash in self._finished():
            return hash
        begun = next(self._found(f"tags.`{HASH_TAG}` = '{hash}'"), None)
        run = begun or self._client.create_run(
            self._experiment, start_time=moment, tags=_tags(record, hash), run_name=record.name
        )
        self._client.log_batch(
            run.info.run_id,
            metrics=[Metric(name, value, moment, 0) for name, value in metrics_of(record).items()],
            params=[Param(name, value) for name, value in parameters_of(record).items()],
        )
        self._client.log_text(run.info.run_id, canonical_json(record.to_dict()), RECORD_FILE)
        if self._report is not None:
            self._client.log_text(run.info.run_id, self._report(record), REPORT_FILE)
        self._client.set_terminated(run.info.run_id, "FINISHED", end_time=moment)
        self._finished()[hash] = run.info.run_id
        return hash

    def _downloaded(self, run_id: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = self._client.download_artifacts(run_id, RECORD_FILE, folder)
            return Path(path).read_text("utf-8", errors="replace")


def metrics_of(record: Record) -> dict[str, float]:
    """Return the median of each metric, its interval and how many values it is of."""
    found: dict[str, float] = {}
    for metric, samples in record.samples.items():
        name = NOT_IN_NAMES.sub("_", metric)
        found[name] = samples.median
        found[f"{name}/n"] = samples.count
        if samples.count > 1:
            interval = samples.median_interval()
            found |= {f"{name}/low": interval.low, f"{name}/high": interval.high}
    return found


def parameters_of(record: Record) -> dict[str, str]:
    """Return the settings of a record, nested ones by names with dots."""
    flat = list(_flat(record.settings).items())[:MOST_PARAMETERS]
    return {NOT_IN_NAMES.sub("_", name): value[:LONGEST_VALUE] for name, value in flat}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def _tags(record: Record, hash: str) -> dict[str, str]:
    tags = {
        HASH_TAG: hash,
        KIND_TAG: record.kind,
        MACHINE_TAG: record.machine,
        COMMIT_TAG: record.commit or "",
        CREATED_TAG: record.created_at,
        "mlflow.note.content": "\n".join(f"- {note}" for note in record.notes),
    }
    return {name: value for name, value in tags.items() if value}


def _milliseconds(record: Record) -> int:
    return round(datetime.fromisoformat(record.created_at).timestamp() * 1000)
