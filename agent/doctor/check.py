"""The result of one check of the doctor. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class CheckVerdict(StrEnum):
    """GOOD; WARNING: the agent runs without something; BAD: the agent does not run, or not for long."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """`name` is one word, `sentence` the result, and `remedy` what to do unless it is good."""

    name: str
    verdict: CheckVerdict
    sentence: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready {name, verdict, sentence, remedy}."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, str]) -> Self:
        """The check that to_json told."""
        return cls(told["name"], CheckVerdict(told["verdict"]), told["sentence"], told["remedy"])


def good(name: str, sentence: str) -> DoctorCheck:
    """A check that passed."""
    return DoctorCheck(name, CheckVerdict.GOOD, sentence)


def warning(name: str, sentence: str, remedy: str) -> DoctorCheck:
    """A check that found something missing."""
    return DoctorCheck(name, CheckVerdict.WARNING, sentence, remedy)


def bad(name: str, sentence: str, remedy: str) -> DoctorCheck:
    """A check that failed."""
    return DoctorCheck(name, CheckVerdict.BAD, sentence, remedy)


def worst(checks: Iterable[DoctorCheck]) -> CheckVerdict:
    """The worst verdict of all checks."""
    order = list(CheckVerdict)
    return max((check.verdict for check in checks), key=order.index, default=CheckVerdict.GOOD)
