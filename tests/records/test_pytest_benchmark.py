import copy
import string

import pytest

from tinytorch.records.exchange import MACHINE_PREFIX, is_pytest_benchmark, records_of

# The shape of what `pytest --benchmark-json` writes; the numbers are made up.
CONTENTS = {
    "machine_info": {
        "node": "runner-17",
        "processor": "x86_64",
        "machine": "x86_64",
        "python_compiler": "GCC 12.2.0",
        "python_implementation": "CPython",
        "python_implementation_version": "3.12.1",
        "python_version": "3.12.1",
        "python_build": ["main", "Dec 19 2025"],
        "release": "6.1.0",
        "system": "Linux",
        "cpu": {
            "python_version": "3.12.1.final.0 (64 bit)",
            "arch": "X86_64",
            "bits": 64,
            "count": 4,
            "brand_raw": "Some CPU @ 3.00GHz",
            "hz_actual_friendly": "2.9942 GHz",
            "flags": ["avx", "avx2"],
        },
    },
    "commit_info": {
        "id": "5b78858eb718649a31fb93d8dc96ca2cee41a4cd",
        "time": "2026-04-30T10:00:00+02:00",
        "dirty": True,
        "project": "thing",
        "branch": "main",
    },
    "benchmarks": [
        {
            "group": None,
            "name": "test_sort[100]",
            "fullname": "tests/test_sort.py::test_sort[100]",
            "params": {"n": 100},
            "param": "100",
            "extra_info": {"why": "because"},
            "options": {
                "disable_gc": False,
                "timer": "perf_counter",
                "min_rounds": 5,
                "max_time": 1.0,
                "min_time": 0.000005,
                "warmup": False,
            },
            "stats": {
                "min": 1e-06,
                "max": 3e-06,
                "mean": 2e-06,
                "rounds": 3,
                "median": 2e-06,
                "data": [1e-06, 3e-06, 2e-06],
                "iterations": 40,
            },
        }
    ],
    "datetime": "2026-05-01T12:00:00.123456",
    "version": "5.1.0",
}


def changed(**entry):
    contents = copy.deepcopy(CONTENTS)
    contents["benchmarks"][0].update(entry)
    return contents


def machine_of(contents):
    (made,), _ = records_of(contents)
    return made.machine


def test_an_entry_becomes_a_record_with_its_raw_values():
    (made,), refused = records_of(CONTENTS)
    assert refused == []
    assert (made.kind, made.name) == ("test", "tests/test_sort.py::test_sort[100]")
    latency = made.samples["latency"]
    assert (latency.values, latency.unit, latency.loops) == ((1e-06, 3e-06, 2e-06), "s", 40)
    assert made.created_at == "2026-05-01T12:00:00.123456+00:00"
    assert made.commit == "5b78858eb718649a31fb93d8dc96ca2cee41a4cd"
    assert made.commit_has_changes
    assert made.settings["options"]["min_rounds"] == 5
    assert made.details["params"] == {"n": 100}
    assert made.environment["cpu_model"] == "Some CPU @ 3.00GHz"
    assert made.notes == ("imported from pytest-benchmark 5.1.0",)


def test_its_machine_is_never_one_of_ours():
    machine = machine_of(CONTENTS)
    assert machine.startswith(MACHINE_PREFIX)
    assert set(machine) - set(string.hexdigits), "ours are hexadecimal digits only"


def test_what_changes_by_itself_is_not_in_the_machine():
    other = copy.deepcopy(CONTENTS)
    other["machine_info"].update(node="runner-18", release="6.1.1", python_version="3.12.9")
    other["machine_info"]["cpu"]["hz_actual_friendly"] = "3.1 GHz"
    assert machine_of(other) == machine_of(CONTENTS)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [(None, "python_version", "3.13.0"), ("cpu", "count", 8), ("cpu", "brand_raw", "Another")],
)
def test_what_decides_about_speed_is_in_the_machine(part, name, value):
    other = copy.deepcopy(CONTENTS)
    holder = other["machine_info"][part] if part else other["machine_info"]
    holder[name] = value
    assert machine_of(other) != machine_of(CONTENTS)


def test_other_options_are_other_settings():
    (made,), _ = records_of(CONTENTS)
    (other,), _ = records_of(changed(options={"min_rounds": 50}))
    assert made.settings_key != other.settings_key


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"stats": {"median": 1.0}}, "no raw values (stats.data); write the file with"),
        ({"stats": {"data": []}}, "no raw values"),
        ({"stats": {"data": None}}, "no raw values"),
        ({"stats": None}, "without stats"),
        ({"stats": {"data": ["x"]}}, "could not convert"),
        ({"stats": {"data": [float("nan")]}}, "hold nan"),
        ({"fullname": None, "name": None}, "without a name"),
    ],
)
def test_an_entry_that_gives_no_samples_is_refused_with_a_reason(entry, words):
    contents = changed(**entry)
    contents["benchmarks"].append(CONTENTS["benchmarks"][0])
    records, refused = records_of(contents)
    assert len(records) == 1
    ((number, reason),) = refused
    assert number == 1
    assert words in reason


def test_entries_of_a_file_without_a_date_are_refused():
    contents = {name: value for name, value in CONTENTS.items() if name != "datetime"}
    records, refused = records_of(contents)
    assert records == []
    assert "is no date" in refused[0][1]


@pytest.mark.parametrize("commit", [None, {}, {"id": "unversioned"}, {"id": None}])
def test_outside_of_a_repository_there_is_no_commit(commit):
    (made,), _ = records_of({**CONTENTS, "commit_info": commit})
    assert made.commit is None


def test_an_old_file_without_details_of_the_cpu_is_read():
    machine = {name: text for name, text in CONTENTS["machine_info"].items() if name != "cpu"}
    (made,), _ = records_of({**CONTENTS, "machine_info": machine})
    assert made.environment["cpu_model"] == "x86_64"


@pytest.mark.parametrize(
    "contents", [None, [], {}, {"benchmarks": []}, {"benchmarks": {}, "machine_info": {}}]
)
def test_other_contents_are_recognised_as_such(contents):
    assert not is_pytest_benchmark(contents)
    assert is_pytest_benchmark(CONTENTS)
