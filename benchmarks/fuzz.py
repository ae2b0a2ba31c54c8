"""What do loaders do with files of strangers? Mutants of valid files, read and shown.

    python benchmarks/fuzz.py [--mutants 2000] [--only WORDS] [--seed 0] [--json FILE]

Each loader of fuzz_loaders.py gets so many files: structures of JSON, TOML and headers with hostile
values in any place, and bytes that are cut, flipped, repeated. An error of ours, in one line, is
fine, and so is reading it. Counted are

    traceback  anything else that is raised, or that ends the process
    hang       more than 5 seconds of computing, or a minute of waiting
    memory     more than 1 GB above what the process had before

Exit code 1 if there is any. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzz_loaders import BYTES, HEADER, JSON, TOML, Loader, loaders

LIMIT_S = 5.0
WAITING = 12
"""Times of the limit that a reader may take by the wall clock: others compute, too."""
LIMIT_BYTES = 1 << 30
AT_ONCE = 200
"""Mutants that a process reads before the next one does."""
READ, REFUSED, TRACEBACK, HANG, MEMORY = "read", "refused", "traceback", "hang", "memory"
BAD = (TRACEBACK, HANG, MEMORY)

DEEP = "[" * 3000 + "]" * 3000
OBJECTS = '{"a":' * 3000 + "1" + "}" * 3000
HOSTILE = (
    *("null", "true", "false", "0", "-1", "1", "1.5", "[]", "{}", '""', "[[]]", "[null]", "[1]"),
    *("1e999", "-1e999", "NaN", "Infinity", "1e308", "9" * 400, "-" + "9" * 400, "9" * 5000),
    *("9223372036854775808", "1000000000", "1000000000000", "2.5e-324", DEEP, OBJECTS),
    *('"nan"', '"inf"', '"\\u0000"', '"\\u001b[2J"', '"\\ud800"', '"../../x"', '{"a":1}'),
    *('"' + "x" * 20_000 + '"', "[" + "0," * 20_000 + "0]", '{"": ""}', '"2026-99-99"'),
)
TOML_HOSTILE = (
    *("[]", "{}", '""', "0", "-1", "1e999", "nan", "inf", "true", "9" * 400, "9" * 5000),
    *("[" * 3000 + "]" * 3000, "2026-01-01", "[1, 'a']", "{a = 1}", '"\\u0000"', "'x'", "1" * 30),
    *('"' + "x" * 20_000 + '"', "[[1]]", "99999999999", "'\x1b[2J'"),
)


def main() -> int:
    """Run all loaders, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    started = time.monotonic()
    rows: dict[str, dict[str, int]] = {}
    for loader in loaders():
        if options.only in loader.name:
            counts, examples = fuzz(loader, options.mutants, options.seed)
            rows[loader.name] = {state: counts[state] for state in (READ, REFUSED, *BAD)}
            print(f"{loader.name:28}", *(f"{k} {v:5}" for k, v in rows[loader.name].items()))
            for words in examples:
                print(f"    {words}", flush=True)
    found = sum(row[state] for row in rows.values() for state in BAD)
    files = sum(sum(row.values()) for row in rows.values())
    print(f"{files} files, {found} bad ({time.monotonic() - started:.0f} s)")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 1 if found else 0


def fuzz(loader: Loader, count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Return how many mutants had which end, and one example of each kind of a bad one."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        for number, state, words in _in_processes(loader, numbers, seed):
            counts[state] += 1
            if state in BAD:
                kind = f"{state}: {words}"
                examples.setdefault(kind, f"{kind} (mutant {number})")
    return counts, list(examples.values())[:20]


def mutant(loader: Loader, number: int, seed: int = 0) -> bytes:
    """Return a file by its number."""
    chance = random.Random(f"{seed} {loader.name} {number}")
    content = loader.seeds[number % len(loader.seeds)]
    if number < len(loader.seeds):
        return content
    if chance.random() < 0.1:
        return _changed_bytes(content, chance)
    return CHANGES[loader.kind](content, chance)


# ---------------------------------------------------------------- changes


def _changed_bytes(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                del changed[place:]
            case 1:
                changed[place : place + 1] = bytes([chance.randrange(256)])
            case 2:
                changed[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                end = place + chance.randrange(64)
                changed[place:place] = changed[place:end] * chance.randrange(1, 50)
            case 4:
                del changed[place : place + chance.randrange(64)]
            case 5:
                changed[place : place + 4] = chance.choice(
                    (b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff")
                )
    return bytes(changed)


def _changed_json(content: bytes, chance: random.Random) -> bytes:
    value = json.loads(content)
    marks: dict[str, str] = {}
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        holder, key = _place(value, chance)
        mark = f"HOSTILE{number}"
        match chance.randrange(8):
            case 0 if isinstance(holder, dict):
                holder.pop(key)
            case 1 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(holder[key])] * chance.choice((1, 100))
            case 2 if isinstance(holder, dict):
                holder[chance.choice(("", "x" * 9000, "\x1b[2J", "__class__"))] = holder.pop(key)
            case _:
                holder[key] = mark
                marks[f'"{mark}"'] = chance.choice(HOSTILE)
    text = json.dumps(value)
    for mark, hostile in marks.items():
        text = text.replace(mark, hostile)
    return text.encode("utf-8", "surrogatepass")


def _place(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return a container in a value and a key in it, any depth as likely."""
    places: list[list[tuple[Any, Any]]] = []
    level = [[value]]
    rest: list[Any] = [value]
    while rest:
        inner = [
            (each, key)
            for each in rest
            for key in (each if isinstance(each, dict) else range(len(each)))
        ]
        if inner:
            places.append(inner)
        rest = [
            found
            for found in (holder[key] for holder, key in inner)
            if isinstance(found, dict | list)
        ]
    return chance.choice(chance.choice(places)) if places else (level[0], 0)


def _changed_toml(content: bytes, chance: random.Random) -> bytes:
    lines = content.decode().splitlines()
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(lines))
        name, equals, _ = lines[place].partition("=")
        match chance.randrange(6):
            case 0:
                lines.insert(place, chance.choice(lines))
            case 1:
                del lines[place : place + 1]
                lines = lines or [""]
            case 2:
                lines[place] = f"[{'.'.join(['a'] * chance.choice((2, 50, 5000)))}]"
            case 3:
                lines[place] = f"{'.'.join(['a'] * chance.choice((2, 50, 5000)))} = 1"
            case _ if equals:
                lines[place] = f"{name}= {chance.choice(TOML_HOSTILE)}"
            case _:
                lines[place] = chance.choice(("[x", "[[tool]]", "x", "= 1", '"a" = ', "[tool.x]"))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _changed_header(content: bytes, chance: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    raw, payload = content[8 : 8 + length], content[8 + length :]
    if chance.random() < 0.1:
        length = chance.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        return struct.pack("<Q", length) + raw + payload
    changed = _changed_json(raw, chance)
    return struct.pack("<Q", len(changed)) + changed + payload


CHANGES = {
    BYTES: _changed_bytes,
    JSON: _changed_json,
    TOML: _changed_toml,
    HEADER: _changed_header,
}


# ---------------------------------------------------------------- reading, in other processes


class _TooLong(BaseException):
    """Reading took too long."""


def _in_processes(loader: Loader, numbers: range, seed: int) -> Iterator[tuple[int, str, str]]:
    """Yield number, state and words of each; after a process that dies or hangs comes another."""
    left = list(numbers)
    while left:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_read_all, args=(loader, left, seed, theirs)
        )
        process.start()
        theirs.close()
        with suppress(EOFError):
            while left and ours.poll(2 * WAITING * LIMIT_S):
                yield ours.recv()
                left.pop(0)
        if left:  # it ended, or cannot be interrupted
            process.join(LIMIT_S)
            state = HANG if process.is_alive() else TRACEBACK
            process.kill()
            process.join()
            yield left.pop(0), state, f"the process ended with {process.exitcode}"
        process.join()


def _read_all(loader: Loader, numbers: list[int], seed: int, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGPROF, _stop)
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            place = Path(folder, str(number))
            place.mkdir()
            for name, content in loader.beside.items():
                (place / name).write_bytes(content)
            (place / loader.file).write_bytes(mutant(loader, number, seed))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            state, words = _read(loader, place / loader.file)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
            if state in (READ, REFUSED) and grown > LIMIT_BYTES:
                state, words = MEMORY, f"{grown >> 20} MB"
            pipe.send((number, state, words))


def _stop(number: int, frame: Any) -> None:
    raise _TooLong


def _read(loader: Loader, path: Path) -> tuple[str, str]:
    from tinytorch.errors import TinyTorchError

    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, WAITING * LIMIT_S)
        try:
            loader.read(path)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TooLong:
        return HANG, "interrupted"
    except TinyTorchError:
        return REFUSED, ""
    except MemoryError:
        return MEMORY, "MemoryError"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        ours = [each for each in last if "tinytorch/" in each.filename] or last
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return TRACEBACK, f"{type(error).__name__} at {place}: {str(error)[:80]!r}"
    return READ, ""


if __name__ == "__main__":
    sys.exit(main())
