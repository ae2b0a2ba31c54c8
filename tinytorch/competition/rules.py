"""The rules, each with a name, and what was found against them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tinytorch.codec import Coded

Severity = Literal["fatal", "warning"]


@dataclass(frozen=True)
class Rule:
    """A rule; breaking a fatal one keeps an entry off the board."""

    id: str
    title: str
    fix: str
    severity: Severity = "fatal"


@dataclass(frozen=True)
class Finding(Coded):
    """A rule that an entry or a record breaks: what was seen, and what to do."""

    rule: str
    seen: str
    fix: str
    severity: Severity = "fatal"

    strict = True

    @property
    def is_fatal(self) -> bool:
        return self.severity == "fatal"


# fmt: off
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        # the entry, before it runs
        Rule("E1", "The manifest is readable and of a known schema",
             "write it with `tinytorch compete new`"),
        Rule("E2", "It names a known event, division and tier",
             "see `tinytorch compete rules`"),
        Rule("E3", "Every technique and setting is known",
             "use names of the catalog, or transforms with their settings"),
        Rule("E4", "In closed, the weights are the reference's",
             "leave out the weights, or enter the open division"),
        Rule("E5", "In closed, weights are quantized at most, not removed or approximated",
             "leave the technique out, or enter the open division"),
        Rule("E6", "Python code runs only with --trust",
             "look at the code, then pass --trust"),
        Rule("E7", "Learners use no other framework than TinyTorch",
             "leave out other frameworks, or enter another division"),
        Rule("E8", "The entry can be built and called", "run `tinytorch compete check` again"),
        # the answers
        Rule("A1", "Every answer is finite and has the reference's shape",
             "return one finite number per class or character"),
        Rule("A2", "The accuracy of the tier is kept on the timed answers",
             "use less lossy techniques, or enter the other tier or division"),
        Rule("A3", "Answers depend on the question", "compute the answer from the question"),
        Rule("A4", "In closed, answers are as precise as declared",
             "declare the precision that is used"),
        Rule("A5", "Generated text is the model's own greedy prediction",
             "choose the most likely character at each step"),
        Rule("A6", "Text is predicted, not looked up",
             "process texts of the book like any others"),
        # how they came about
        Rule("T1", "Time is what the judge's clock shows", "leave clocks alone"),
        Rule("T2", "In closed, no time is below this machine's lower bound",
             "if the machine changed its clock rate, run again"),
        Rule("T3", "In closed and learner, no state is kept between questions",
             "do not cache answers"),
        Rule("T4", "Work ends with the answer",
             "wait for threads before answering"),
        Rule("T5", "Questions are not modified", "work on a copy"),
        Rule("T6", "Memory, time, processes and files stay within the limits",
             "use fewer resources"),
        Rule("T7", "A run that has begun ends",
             "run again; the one whose judge was killed counts as not valid"),
        # the record
        Rule("R1", "The record is unchanged", "take the original file"),
        Rule("R2", "The record matches its round: its data come from the committed seed",
             "run in this round"),
        Rule("R3", "The numbers follow from the raw values", "take the original file"),
        Rule("R4", "The signature is valid for the key", "sign again"),
        # doubts
        Rule("W1", "Code ran sandboxed",
             "install bubblewrap and pyseccomp, and run without --unconfined", "warning"),
        Rule("W2", "The machine was idle", "run again on an idle machine", "warning"),
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
