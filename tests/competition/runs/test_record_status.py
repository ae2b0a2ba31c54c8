"""A run is verified by what can be checked, never by its own word."""

from dataclasses import replace

import pytest
from example_judgements import SPRING, kept_entry, kept_judgement

from tinytorch.competition import verification as record_status
from tinytorch.competition.events import EVENTS, draw_questions
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import PRACTICE
from tinytorch.competition.rules import finding
from tinytorch.competition.signing import SignatureCheck
from tinytorch.competition.verification import check_round, find_round, status_of

KEY, OTHER_KEY = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"
FIRST_QUESTIONS = "da" * 32


@pytest.fixture(autouse=True)
def _same_questions(monkeypatch):
    """Draw nothing: the questions of 10 heats have this hash."""

    def known(event, found, heats):
        assert found.seed is not None
        return FIRST_QUESTIONS if heats == 10 else "other"

    monkeypatch.setattr(record_status, "_questions_sha256", known)


def run_in(found=SPRING, **changes):
    fields = {
        "round_name": found.name,
        "commitment": found.commitment,
        "data_sha256": FIRST_QUESTIONS,
    }
    return kept_judgement(**(fields | changes))


def status(judgement, rounds, *, claim="verified", signer=""):
    record = as_record(judgement, status=claim)
    return status_of(record, judgement, signature=SignatureCheck(signer), rounds=rounds)


def test_a_revealed_seed_verifies_its_own_questions():
    assert status(run_in(), [SPRING]) == "verified"
    assert status(run_in(data_sha256="else"), [SPRING]) == "unverified"
    assert status(run_in(), [SPRING.public(), SPRING]) == "verified"


def test_before_the_seed_is_revealed_the_status_says_so():
    assert status(run_in(), [SPRING.public()]) == "verified, seed not revealed"


def test_where_the_round_names_a_key_only_that_key_verifies():
    keyed = replace(SPRING.public(), public_key=f"{KEY} organiser@school")
    assert status(run_in(), [keyed], signer=KEY) == "verified"
    assert status(run_in(), [keyed], signer=OTHER_KEY) == "unverified"
    assert status(run_in(), [keyed]) == "unverified"
    assert status(run_in(), [replace(keyed, public_key="nonsense")], signer=KEY) == "unverified"


def test_the_word_of_a_record_alone_is_nothing():
    assert status(run_in(), []) == "unverified"
    assert status(run_in(), [SPRING], claim="unverified") == "unverified"
    assert status(run_in(PRACTICE), [PRACTICE]) == "unverified"


def test_a_run_from_before_the_round_is_not_of_it():
    early = run_in(created_at="2026-02-01T00:00:00Z")
    assert status(early, [SPRING]) == "unverified"
    (found,) = check_round(as_record(early), early, signer="", rounds=[SPRING])
    assert found.seen == "it was made before the round 'spring' began"


def test_code_without_trust_is_not_verified():
    entry = kept_entry(code="model.py:make")
    refused = run_in(entry=entry, findings=(finding("E6", "nobody trusts it"),))
    assert status(refused, [SPRING.public()]) == "unverified"
    assert status(run_in(entry=entry), [SPRING]) == "verified"


def test_an_unknown_round_is_a_doubt_and_fatal_for_who_claims_to_be_verified():
    judgement = run_in()
    for claim, severity in (("unverified", "warning"), ("verified", "fatal")):
        record = as_record(judgement, status=claim)
        (found,) = check_round(record, judgement, signer="", rounds=[])
        assert (found.rule, found.severity) == ("R2", severity)


def test_the_round_with_the_seed_is_preferred():
    assert find_round(run_in(), [SPRING.public(), SPRING]) == SPRING
    assert find_round(run_in(PRACTICE), []) == PRACTICE
    assert find_round(run_in(commitment="else"), [SPRING]) is None


def test_more_heats_than_there_is_text_for_cannot_be_of_the_seed(monkeypatch):
    monkeypatch.undo()
    judgement = run_in(entry=kept_entry(event="transformer_decathlon"), count=2000)
    (found,) = check_round(as_record(judgement), judgement, signer="", rounds=[SPRING])
    assert found.seen.startswith("its questions cannot be drawn")


def test_the_hash_is_that_of_the_questions_of_the_judge(monkeypatch):
    monkeypatch.undo()
    event = EVENTS["transformer_decathlon"]
    data = draw_questions(event, SPRING, heats=6).sha256
    judgement = run_in(entry=kept_entry(event=event.name), count=6, data_sha256=data)
    assert status(judgement, [SPRING]) == "verified"


@pytest.mark.parametrize("claim", ["verified", "unverified"])
@pytest.mark.parametrize("public_key", ["", KEY])
def test_a_signature_that_could_not_be_checked_is_neither_verified_nor_unverified(
    claim, public_key
):
    record = as_record(run_in(), status=claim)
    told = SignatureCheck(KEY, is_checked=False)
    known = [replace(SPRING.public(), public_key=public_key)]
    assert status_of(record, run_in(), signature=told, rounds=known) == "signature not checked"


def test_no_run_of_the_practice_round_is_verified():
    judgement = run_in(PRACTICE)
    record = as_record(judgement, status="verified")
    (found,) = check_round(record, judgement, signer="", rounds=[])
    assert (found.rule, found.severity) == ("R2", "fatal")
    assert check_round(as_record(judgement), judgement, signer="", rounds=[]) == ()
