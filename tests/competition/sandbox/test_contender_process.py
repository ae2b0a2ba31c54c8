"""A contender answers from a process of its own, within limits, and is gone afterwards."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from parts import require_sandbox

from tinytorch.competition.entry import Technique
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.competition.sandbox.building import build
from tinytorch.competition.sandbox.contender import Contender, ContenderError, Limits
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.autograd import no_grad
from tinytorch.errors import SettingError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="contenders need Unix")
require_sandbox()
CODE = Path(__file__).parent / "entry_code" / "models.py"
IMAGE = np.linspace(-1, 1, 784, dtype=np.float32)[None]
TEXT = np.arange(64)[None]


def of_code(name: str, event: str = "mlp_sprint", techniques: tuple[str, ...] = ()) -> Contender:
    return Contender(event, tuple(map(Technique, techniques)), code=f"{CODE}:{name}")


def ask_three_times(contender: Contender, limits: Limits) -> None:
    with ContenderProcess(contender, limits=limits) as asked:
        asked.load()
        for _ in range(3):
            asked.ask("forward", IMAGE)


@pytest.fixture(scope="module")
def reference() -> Iterator[ContenderProcess]:
    with ContenderProcess(Contender("mlp_sprint")) as contender:
        contender.load()
        yield contender


def test_answers_are_those_of_the_model(reference: ContenderProcess) -> None:
    answer = reference.ask("forward", IMAGE)
    with no_grad():
        expected = build(Contender("mlp_sprint")).forward(IMAGE)
    # BLAS may add up in another order where an array lies elsewhere: some units of rounding.
    rounding = 16 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(answer.output, expected, rtol=0, atol=rounding)
    assert answer.output.dtype == expected.dtype
    assert answer.is_question_intact


def test_the_inner_time_lies_within_the_judges(reference: ContenderProcess) -> None:
    answers = [reference.ask("forward", IMAGE) for _ in range(10)]
    assert all(0 < each.inner_s < each.round_trip_s for each in answers)


def test_usage_is_seen_from_outside(reference: ContenderProcess) -> None:
    before = reference.usage()
    for _ in range(50):
        reference.ask("forward", IMAGE)
    usage = reference.usage()
    assert usage.cpu_s > before.cpu_s > 0
    assert usage.peak_bytes > 0
    assert usage.processes == 1
    assert "torch" not in usage.modules


def test_an_idle_contender_uses_next_to_nothing(reference: ContenderProcess) -> None:
    assert reference.pause(0.05) < 0.05


def test_it_is_kept_apart(reference: ContenderProcess) -> None:
    assert reference.protection["sandbox"] == Protection("bubblewrap")
    assert reference.protection["cores"] == Protection("1")


@pytest.mark.slow
def test_a_text_is_written_by_the_reference_and_with_a_cache_alike() -> None:
    written = []
    for techniques in ((), (Technique("kv-cache"),)):
        with ContenderProcess(Contender("transformer_decathlon", techniques)) as contender:
            loading = contender.load()
            written.append(contender.ask("generate", TEXT[0, :16], count=8).output)
            assert loading.file_bytes > 1e6
            assert loading.seconds > 0
    np.testing.assert_array_equal(*written)
    assert written[0].shape == (8,)


@pytest.mark.slow
def test_techniques_and_their_plans_arrive() -> None:
    techniques = (Technique("int8-static"), Technique("own", (("FuseLayers", {}),)))
    with ContenderProcess(Contender("cnn_marathon", techniques)) as contender:
        loading = contender.load()
        answer = contender.ask("forward", np.zeros((2, 1, 28, 28), np.float32))
    assert [plan["transform"] for plan in loading.plans] == ["Quantize", "FuseLayers"]
    assert loading.file_bytes < 40_000
    assert answer.output.shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("raising", "E8", r"building it raised KeyError"),
        ("raising_later", "E8", r"models.py:\d+ in \w+: answering raised Zero.*; it wrote: last"),
        ("leaving", "T6", r"while answering, its process ended with code 7"),
        ("hanging", "T6", r"while answering, nothing was said for 0\.5 s; it was ended"),
        ("hoarding", "T6", r"it holds .* MiB; 512 are allowed|needed more than 512 MiB"),
        ("of_words", "A1", r"an array of <U1 cannot be sent"),
        ("missing", "E8", r"models.py has no function 'missing'"),
    ],
)
def test_what_goes_wrong_names_the_rule(name: str, rule: str, words: str) -> None:
    limits = Limits(memory_bytes=512 << 20, answer_s=0.5 if name == "hanging" else 60)
    with pytest.raises(ContenderError, match=words) as caught:
        ask_three_times(of_code(name), limits)
    assert caught.value.rule == rule


@pytest.mark.slow
def test_an_answer_that_nobody_asked_for_is_seen() -> None:
    words = r"more than one message|although nothing was asked|our clock shows"
    with pytest.raises(ContenderError, match=words) as caught:
        ask_three_times(of_code("speaking"), Limits())
    assert caught.value.rule in ("A1", "T1", "T4")  # with the other, instead of it, or after it


@pytest.mark.slow
def test_cheats_are_seen() -> None:
    with ContenderProcess(of_code("changing")) as contender:
        contender.load()
        assert not contender.ask("forward", IMAGE).is_question_intact
        assert IMAGE.any()
    with ContenderProcess(of_code("working_on")) as contender:
        contender.load()
        contender.ask("forward", IMAGE)
        assert contender.pause(0.3) > 0.01
        assert psutil.Process(contender.pid).num_threads() == 2
    with ContenderProcess(of_code("with_patched_clock")) as contender:
        contender.load()
        answer = contender.ask("forward", IMAGE)
        assert answer.inner_s > 0.02


@pytest.mark.slow
def test_nothing_of_the_judge_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_JUDGE", "SECRET")
    with ContenderProcess(of_code("looking")) as contender:
        contender.load()
        assert not contender.ask("forward", IMAGE).output


@pytest.mark.slow
def test_code_knows_what_is_switched_on() -> None:
    for techniques in ((), ("a", "b")):
        with ContenderProcess(of_code("by_hand", techniques=techniques)) as contender:
            contender.load()
            assert contender.ask("forward", IMAGE).output.shape == (1, 1 + len(techniques))


@pytest.mark.parametrize("limits", [Limits(), Limits(unconfined=True)])
def test_the_process_is_gone_when_the_block_ends(limits: Limits) -> None:
    with ContenderProcess(Contender("mlp_sprint"), limits=limits) as contender:
        process = psutil.Process(contender.pid)
        folder = Path(os.readlink(f"/proc/{contender.pid}/cwd"))
        assert folder.is_dir()
        contender.hold()  # also one that is stopped
    assert not process.is_running()
    assert not folder.exists()


def test_holding_stops_it_until_it_is_released(reference: ContenderProcess) -> None:
    reference.hold()
    assert psutil.Process(reference.pid).status() == psutil.STATUS_STOPPED
    reference.release()
    assert psutil.Process(reference.pid).status() != psutil.STATUS_STOPPED
    assert reference.ask("forward", IMAGE).output.shape == (1, 10)


def test_other_systems_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with (
        pytest.raises(SettingError, match="on Linux and macOS only"),
        ContenderProcess(Contender("mlp_sprint")),
    ):
        pass
