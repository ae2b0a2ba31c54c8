"""The organiser judges an entry once more, and keeps the run as verified."""

from dataclasses import replace

import pytest
from example_judgements import SPRING, entry_folder, kept_judgement
from parts import require_part

from tinytorch.competition import submissions as rerunning
from tinytorch.competition.rounds import PRACTICE, write_round
from tinytorch.competition.rules import finding
from tinytorch.competition.run_files import keep_run, read_record_file
from tinytorch.competition.signing import check_signature, new_key
from tinytorch.competition.submissions import rerun
from tinytorch.competition.verification import read_folder
from tinytorch.errors import SettingError


def judged(speedup=2.0, **changes):
    """Give a judge that sees what it is told to see."""

    def judge(entry, *, round, trust, limits, **settings):
        return kept_judgement(
            speedup,
            entry=entry,
            round_name=round.name,
            commitment=round.commitment,
            notes=(f"trust={trust}", *map(str, settings)),
            **changes,
        )

    return judge


@pytest.fixture
def entry(tmp_path):
    return entry_folder(tmp_path / "mine")


def test_the_new_run_lies_beside_the_others_and_is_verified(entry):
    done = rerun(entry.folder, SPRING, judge=judged(), heats=10)
    assert done.judgement.notes == ("trust=False", "heats")
    assert (done.claimed, done.agrees) == (None, None)
    write_round(SPRING.public(), entry.folder / "rounds" / "spring.json")
    (run,) = read_folder(entry.folder).records
    assert (run.judgement, run.is_verified) == (done.judgement, True)


def test_a_verified_run_is_no_claim_of_the_team(entry):
    keep_run(kept_judgement(2.0, entry=entry), entry)
    rerun(entry.folder, SPRING, judge=judged(5.0))
    assert rerun(entry.folder, SPRING, judge=judged(5.0, seed=1)).claimed.n == 10


def test_a_run_that_could_not_be_signed_is_not_kept(entry, tmp_path, monkeypatch):
    require_part("cryptography")

    def stop(path, key):
        raise KeyboardInterrupt

    monkeypatch.setattr(rerunning, "sign_record", stop)
    with pytest.raises(KeyboardInterrupt):
        rerun(entry.folder, SPRING, judge=judged(), key=new_key(tmp_path / "key"))
    assert list((entry.folder / "results").iterdir()) == []


@pytest.mark.parametrize(("claim", "agrees"), [(2.0, True), (3.0, False)])
def test_it_says_whether_the_claim_is_confirmed(entry, claim, agrees):
    keep_run(kept_judgement(claim, entry=entry, seed=1), entry)
    keep_run(kept_judgement(claim, entry=entry, seed=2), entry)
    keep_run(kept_judgement(9.0, entry=replace(entry, sha256="00" * 32)), entry)
    done = rerun(entry.folder, SPRING, judge=judged())
    assert done.claimed.n == 20
    assert done.agrees is agrees


def test_a_run_that_breaks_a_rule_confirms_nothing(entry):
    keep_run(kept_judgement(2.0, entry=entry), entry)
    done = rerun(entry.folder, SPRING, judge=judged(findings=(finding("T3", "seen"),)))
    assert done.agrees is None


def test_a_round_with_a_key_is_signed_with_that_key(entry, tmp_path):
    require_part("cryptography")
    key = new_key(tmp_path / "key")
    new_key(tmp_path / "other")
    keyed = replace(SPRING, public_key=f"{key.public} organiser")
    with pytest.raises(SettingError, match="are signed; give the key with --key"):
        rerun(entry.folder, keyed, judge=judged())
    with pytest.raises(SettingError, match="the key is not the one that round 'spring' names"):
        rerun(entry.folder, keyed, judge=judged(), key=tmp_path / "other")
    done = rerun(entry.folder, keyed, judge=judged(), key=tmp_path / "key")
    assert check_signature(done.path, read_record_file(done.path).hash).signer == key.public


@pytest.mark.parametrize(
    ("found", "message"),
    [(SPRING.public(), "the seed of round 'spring' is not known"), (PRACTICE, "practice round")],
)
def test_a_secret_seed_is_needed(entry, found, message):
    with pytest.raises(SettingError, match=message):
        rerun(entry.folder, found, judge=judged())


def test_code_is_run_only_with_trust(tmp_path):
    (tmp_path / "model.py").write_text("def make(reference, techniques):\n    return reference\n")
    entry = entry_folder(tmp_path, code="model.py:make", techniques=())
    with pytest.raises(SettingError, match=r"is Python code, model.py:make; look at it"):
        rerun(entry.folder, SPRING, judge=judged())
    assert rerun(entry.folder, SPRING, judge=judged(), trust=True).judgement.notes == (
        "trust=True",
    )
