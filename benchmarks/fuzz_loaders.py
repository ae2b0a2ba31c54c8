"""The loaders that fuzz.py feeds: for each, valid files to start from, and what reads and shows."""

from __future__ import annotations

import copy
import json
import sqlite3
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

BYTES, JSON, TOML, HEADER = "bytes", "json", "toml", "header"


@dataclass(frozen=True)
class Loader:
    """How a kind of files is made, named, changed and read.

    `read` gets the changed file in a folder of its own; the other files of `beside` are there, too.
    """

    name: str
    file: str
    kind: str
    seeds: Sequence[bytes]
    read: Callable[[Path], object]
    beside: Mapping[str, bytes]


def loaders() -> list[Loader]:
    """Return all loaders."""
    return [*_records(), *_results(), *_settings(), *_weights(), *_others()]


def _loader(
    name: str,
    file: str,
    kind: str,
    seeds: Sequence[bytes],
    read: Callable[[Path], object],
    beside: Mapping[str, bytes] | None = None,
) -> Loader:
    return Loader(name, file, kind, seeds, read, beside or {})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _show(result: Any, **context: Any) -> None:
    from tinytorch.reporting.document import document_of
    from tinytorch.reporting.markdown import write
    from tinytorch.reporting.terminal import plain

    document = document_of(result, **context)
    plain(document)
    write(document)


# ---------------------------------------------------------------- records


def _records() -> list[Loader]:
    from example_records import series

    from tinytorch.records.exchange import import_file, read_pytest_benchmark
    from tinytorch.records.history import overview, trends
    from tinytorch.records.sharing import RecordFolder
    from tinytorch.records.store import RecordStore

    records = series([0.1, 0.2, 0.3])
    lines = b"".join(_json(each.to_dict()) + b"\n" for each in records)
    bare = _json({k: v for k, v in records[0].to_dict().items() if k != "hash"})

    def imported(path: Path) -> None:
        with RecordStore(path.with_name("store.db")) as store:
            import_file(store, path)
            _listed(store)

    def folder(path: Path) -> None:
        found = RecordFolder(path.parent)
        found.get_all(found.hashes())

    def store(path: Path) -> None:
        with RecordStore(path) as opened:
            _listed(opened)
            opened.check()

    def _listed(opened: RecordStore) -> None:
        found = opened.find()
        opened.series()
        overview(opened)
        for each in trends(found):
            _show(each)

    return [
        _loader("records: JSON lines", "x.jsonl", JSON, [bare], imported),
        _loader("records: JSON lines, bytes", "x.jsonl", BYTES, [lines], imported),
        _loader("records: shared folder", "records-x.jsonl", BYTES, [lines], folder),
        _loader(
            "pytest-benchmark",
            "x.json",
            JSON,
            [_json(_benchmark())],
            lambda path: read_pytest_benchmark(path, refused=[]),
        ),
        _loader("store of SQLite", "x.db", BYTES, _stores(records), store),
    ]


def _benchmark() -> dict[str, Any]:
    cpu = {"arch": "X86_64", "bits": 64, "count": 4, "brand_raw": "Some CPU", "flags": ["avx2"]}
    machine = {"system": "Linux", "machine": "x86_64", "python_version": "3.12.1", "cpu": cpu}
    entry = {
        "name": "test_a",
        "fullname": "t.py::test_a",
        "options": {"min_rounds": 5},
        "extra_info": {},
        "stats": {"data": [1e-6, 3e-6], "iterations": 40, "rounds": 2},
    }
    return {
        "machine_info": machine,
        "commit_info": {"id": "5b78858e", "dirty": True},
        "benchmarks": [entry, copy.deepcopy(entry)],
        "datetime": "2026-05-01T12:00:00.123456",
        "version": "5.1.0",
    }


HOSTILE_SQL = (
    "PRAGMA user_version = -1",
    "PRAGMA user_version = 1",
    "CREATE VIEW v AS SELECT 1",
    "UPDATE records SET body = 3",
    "UPDATE records SET body = x'00ff', name = x'ff'",
    "UPDATE records SET created_at = 'never'",
    "UPDATE series SET count = 'many'",
    "UPDATE series SET first = 7, last = x'00'",
    "UPDATE series SET name = NULL WHERE 0",
    "UPDATE records SET hash = 'short' WHERE id = 1",
    "DELETE FROM series",
    "DROP TABLE series",
    "PRAGMA application_id = 3",
)


def _stores(records: Sequence[Any]) -> list[bytes]:
    import tempfile

    from tinytorch.records.store import RecordStore

    made = []
    with tempfile.TemporaryDirectory() as folder:
        for number, statement in enumerate(("SELECT 1", *HOSTILE_SQL)):
            path = Path(folder, f"{number}.db")
            with RecordStore(path) as store:
                store.add_all(records)
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute(statement)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            made.append(path.read_bytes())
    return made


# ---------------------------------------------------------------- results that were kept


def _results() -> list[Loader]:
    from example_comparisons import with_evidence
    from example_monitors import snapshot
    from kept_attempts import optimization, timed

    from tinytorch.comparison.comparison import Comparison
    from tinytorch.monitoring.snapshot import read_snapshot
    from tinytorch.reporting.kept_results import result_in_file

    compared: Comparison = with_evidence()
    sides = {side: {"target": "mlp"} for side in ("baseline", "candidate")}
    comparison = {"command": "compare", "comparison": compared.to_dict(), **sides}
    tried = optimization(timed("int8-dynamic"), timed("compiled-kernels", ratio=0.8))
    optimized = {"command": "optimize", "optimization": tried.to_dict()}

    def kept(path: Path) -> None:
        found = result_in_file(path)
        _show(found.result, **found.context)

    return [
        _loader("kept comparison", "x.json", JSON, [_json(comparison)], kept),
        _loader("kept optimization", "x.json", JSON, [_json(optimized)], kept),
        _loader(
            "monitor snapshot",
            "x.json",
            JSON,
            [_json(snapshot().to_dict())],
            lambda path: _show(read_snapshot(str(path))),
        ),
    ]


# ---------------------------------------------------------------- settings

SUITE = b"""
name = "zoo"
budget_s = 2.0

[[workload]]
target = "mlp"
batch_sizes = [1, 32]
backends = ["numpy"]
scenarios = ["single-stream", "server"]

[scenario.server]
latency_bound_ms = 50
percentile = 99
"""
PROJECT = b"""
[project]
name = "x"

[tool.tinytorch]
perf = true

[tool.tinytorch.gate]
tolerance = "5%"
"""


def _settings() -> list[Loader]:
    import pytest

    from tinytorch.benchmarking.suite_file import load_suite
    from tinytorch.errors import SettingError
    from tinytorch.pytest_plugin.options import _is_on_in_project
    from tinytorch.records.settings import read_gate_settings

    def plugin(path: Path) -> None:
        try:
            _is_on_in_project(path)
        except pytest.UsageError as error:
            raise SettingError(str(error)) from error

    return [
        _loader("suite", "x.toml", TOML, [SUITE], lambda path: load_suite(str(path))),
        _loader(
            "gate",
            "pyproject.toml",
            TOML,
            [PROJECT],
            lambda path: read_gate_settings(path.parent, top=path.parent),
        ),
        _loader("pytest plugin", "pyproject.toml", TOML, [PROJECT], plugin),
    ]


# ---------------------------------------------------------------- weights


def safetensors(table: Any, payload: bytes) -> bytes:
    """Return a safetensors file with this header."""
    raw = json.dumps(table).encode()
    return struct.pack("<Q", len(raw)) + raw + payload


def _weights() -> list[Loader]:
    import tempfile

    import numpy as np

    from tinytorch.core.checkpoints import read_arrays, write_arrays
    from tinytorch.core.transformers import GPT
    from tinytorch.formats.weights_file import describe_weights, read_weights, write_weights

    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(9, 8)).astype(np.float32), "b": np.arange(4)}
    sparse = {
        "a": np.where(rng.random((40, 40)) < 0.2, 1.5, 0).astype(np.float32),
        "b": arrays["a"],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        write_arrays(path, arrays, {"epoch": 3, "more": {"a": [1, 2]}})
        checkpoint = path.read_bytes()
        made = []
        for compact in (False, True):
            write_weights(path, sparse, {"k": "v"}, compact=compact)
            made.append(path.read_bytes())
        write_arrays(path, _gpt2_arrays(), {"format": "pt"})
        gpt2 = path.read_bytes()

    def weights(path: Path) -> None:
        describe_weights(path)
        read_weights(path)

    index = _json({"metadata": {}, "weight_map": {"wte.weight": "model.safetensors"}})
    beside = {"model.safetensors": gpt2, "config.json": _json(GPT2)}

    def folder_of(path: Path) -> object:
        return GPT.from_gpt2(path.parent)

    return [
        _loader("safetensors: header", "x", HEADER, [checkpoint], read_arrays),
        _loader("safetensors: bytes", "x", BYTES, [checkpoint], read_arrays),
        _loader("weights file: header", "x", HEADER, made, weights),
        _loader("weights file: bytes", "x", BYTES, made, weights),
        _loader("GPT-2: config", "config.json", JSON, [_json(GPT2)], folder_of, beside),
        _loader("GPT-2: index", "model.safetensors.index.json", JSON, [index], folder_of, beside),
        _loader("GPT-2: weights", "model.safetensors", HEADER, [gpt2], folder_of, beside),
    ]


GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 7,
    "n_embd": 4,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 5,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "n_inner": None,
}


def _gpt2_arrays() -> dict[str, Any]:
    import numpy as np

    sizes = {
        "wte.weight": (7, 4),
        "wpe.weight": (5, 4),
        "ln_f.weight": (4,),
        "ln_f.bias": (4,),
        "h.0.ln_1.weight": (4,),
        "h.0.ln_1.bias": (4,),
        "h.0.ln_2.weight": (4,),
        "h.0.ln_2.bias": (4,),
        "h.0.attn.c_attn.weight": (4, 12),
        "h.0.attn.c_attn.bias": (12,),
        "h.0.attn.c_proj.weight": (4, 4),
        "h.0.attn.c_proj.bias": (4,),
        "h.0.mlp.c_fc.weight": (4, 16),
        "h.0.mlp.c_fc.bias": (16,),
        "h.0.mlp.c_proj.weight": (16, 4),
        "h.0.mlp.c_proj.bias": (4,),
    }
    return {name: np.ones(shape, np.float32) for name, shape in sizes.items()}


# ---------------------------------------------------------------- the rest


def _others() -> list[Loader]:
    from example_entries import manifest
    from example_judgements import kept_judgement
    from example_work import machine

    from tinytorch.competition.entry import entry_in, parse_manifest
    from tinytorch.competition.judgement_record import as_record, judgement_in
    from tinytorch.competition.run_files import read_record_file, record_text
    from tinytorch.core.tokenization import BPETokenizer, CharTokenizer
    from tinytorch.learning.progress import Progress, StepProgress, overview, read_folder
    from tinytorch.learning.work import _sources
    from tinytorch.measure.ceilings import SCHEMA, load_ceilings
    from tinytorch.records.record import parse_record

    def ceilings(path: Path) -> None:
        found = load_ceilings(path)
        if found is not None:
            found.level(1000)
            found.bandwidth(None)
            found.peak_flops("float32")
            found.ridge("float32")

    def progress(path: Path) -> None:
        if read_folder(path.parent) is not None:
            _show(overview(path.parent))

    def run(path: Path) -> None:
        judgement_in(read_record_file(path))

    def unsigned_run(path: Path) -> None:
        judgement_in(parse_record(path.read_bytes().decode("utf-8", "replace")))

    record = as_record(kept_judgement())
    fields = {name: value for name, value in record.to_dict().items() if name != "hash"}
    kept = {"schema": SCHEMA, "ceilings": machine().to_dict()}
    done = Progress("profiling", "Ada", "2026-01-01", None, {"layers": StepProgress()})
    cells = {"cells": [{"cell_type": "code", "source": ["a = 1\n", "%magic"]}]}
    return [
        _loader("ceilings", "x.json", JSON, [_json(kept)], ceilings),
        _loader("progress of a lab", "progress.json", JSON, [_json(done.to_dict())], progress),
        _loader("notebook", "x.ipynb", JSON, [_json(cells)], lambda path: list(_sources(path))),
        _loader(
            "manifest of an entry",
            "x.json",
            JSON,
            [_json(manifest())],
            lambda path: entry_in(parse_manifest(path.read_bytes())),
        ),
        _loader("run of the competition", "x.json", BYTES, [record_text(record).encode()], run),
        _loader("run, without its hash", "x.json", JSON, [_json(fields)], unsigned_run),
        _loader(
            "characters",
            "x.json",
            JSON,
            [_json({"kind": "characters", "alphabet": "abc"})],
            CharTokenizer.load,
        ),
        _loader(
            "byte pairs",
            "x.json",
            JSON,
            [_json({"kind": "byte-pairs", "merges": [[97, 98]]})],
            BPETokenizer.load,
        ),
    ]
