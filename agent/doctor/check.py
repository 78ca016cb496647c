"""What the doctor says of one thing. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CheckVerdict(StrEnum):
    """GOOD; WARNING: the agent runs, but not as well as it could; BAD: it does not run, or not for long."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """`name` is one word; `sentence` says what was found, `remedy` what to do where it is not good."""

    name: str
    verdict: CheckVerdict
    sentence: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }


def good(name: str, sentence: str) -> DoctorCheck:
    return DoctorCheck(name, CheckVerdict.GOOD, sentence)


def warning(name: str, sentence: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name, CheckVerdict.WARNING, sentence, remedy)


def bad(name: str, sentence: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(name, CheckVerdict.BAD, sentence, remedy)


def worst(checks: Iterable[DoctorCheck]) -> CheckVerdict:
    order = list(CheckVerdict)
    return max((each.verdict for each in checks), key=order.index, default=CheckVerdict.GOOD)
