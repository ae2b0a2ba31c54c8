"""The rules, each with a name, and what was found against them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Severity = Literal["fatal", "warning"]


@dataclass(frozen=True)
class Rule:
    """A rule; breaking a fatal one keeps an entry off the board."""

    id: str
    title: str
    fix: str
    severity: Severity = "fatal"


@dataclass(frozen=True)
class Finding:
    """A rule that an entry or a record breaks: what was seen, and what to do."""

    rule: str
    seen: str
    fix: str
    severity: Severity = "fatal"

    @property
    def is_fatal(self) -> bool:
        return self.severity == "fatal"


# fmt: off
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        # the entry, before it runs
        Rule("E1", "The entry is a readable manifest of a known schema",
             "write it with `tinytorch compete new`"),
        Rule("E2", "It names a known event, division and tier",
             "see `tinytorch compete rules`"),
        Rule("E3", "Every technique and setting is known",
             "use names of the catalog, or transforms with their settings"),
        Rule("E4", "In closed, the weights are the reference's",
             "leave out the weights, or enter the open division"),
        Rule("E5", "In closed, no weight is removed or approximated but by quantization",
             "leave the technique out, or enter the open division"),
        Rule("E6", "Python code runs only with --trust",
             "look at the code, then pass --trust"),
        Rule("E7", "Learners use TinyTorch alone",
             "leave out other frameworks, or enter another division"),
        Rule("E8", "The entry can be built and answers", "run `tinytorch compete check` again"),
        # the answers
        Rule("A1", "Every answer is finite and has the shape of the reference's",
             "give one finite number for each class or character"),
        Rule("A2", "The accuracy of the tier is kept, on the answers that were timed",
             "be more careful with the weights, or enter the other tier or division"),
        Rule("A3", "Answers depend on the question", "answer the question"),
        Rule("A4", "In closed, answers are as precise as declared",
             "declare the precision that is used"),
        Rule("A5", "What is written letter by letter is what the model itself would predict",
             "choose the most likely character in each step"),
        Rule("A6", "Text is predicted, not looked up",
             "read texts of the book as any others"),
        # how they came about
        Rule("T1", "Time is what the judge's clock shows", "leave clocks alone"),
        Rule("T2", "In closed, no time is shorter than this machine can be",
             "if the machine changed its clock rate, run again"),
        Rule("T3", "In closed and learner, nothing is kept from one question to the next",
             "forget what was asked"),
        Rule("T4", "An answer is complete when it is given; nothing goes on after it",
             "wait for threads before answering"),
        Rule("T5", "Questions are left as they are", "work on a copy"),
        Rule("T6", "Memory, time, processes and files stay within the limits",
             "need less"),
        # the record
        Rule("R1", "The record is as it was written", "take the original file"),
        Rule("R2", "The record fits its round: the data are those of the committed seed",
             "run in this round"),
        Rule("R3", "The numbers follow from the raw values", "take the original file"),
        Rule("R4", "The signature is that of the key", "sign again"),
        # doubts
        Rule("W1", "The entry was kept apart as well as possible",
             "run on Linux 5.13 or newer, as root or with user namespaces", "warning"),
        Rule("W2", "The machine was quiet", "run again when it is quiet", "warning"),
    )
}
# fmt: on


def finding(rule: str, seen: str, fix: str = "") -> Finding:
    """Make a finding of a rule of the table."""
    found = RULES[rule]
    return Finding(found.id, seen, fix or found.fix, found.severity)


def doubt(rule: str, seen: str, fix: str = "") -> Finding:
    """Make a finding with the severity "warning", whatever its rule."""
    return replace(finding(rule, seen, fix), severity="warning")
