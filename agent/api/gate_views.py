"""The routes of the gate: what libvirt's hook asks and tells."""

from typing import Any

from agent.driver import Guest
from agent.errors import Refused, UsageError
from agent.gate.gate import Asked, GateVerdict
from agent.json_checks import read_object, read_text

Json = dict[str, Any]

WORD_MAX = 64
XML_MAX = 2**20
KEYS = ("operation", "sub_operation", "extra", "xml")


def parse_asked(body: object) -> Asked:
    """The hook's words as libvirt gave them. Raises UsageError."""
    given = read_object(body, "", KEYS)
    for key in ("operation", "sub_operation", "xml"):
        if key not in given:
            raise UsageError(f"{key}: missing; the gate needs it.", path=key)
    read_text(given.get("extra", "-"), "extra", None, "a word", WORD_MAX)
    return Asked(
        read_text(given["operation"], "operation", None, "a word", WORD_MAX),
        read_text(given["sub_operation"], "sub_operation", None, "a word", WORD_MAX),
        read_text(given["xml"], "xml", None, "the domain's XML", XML_MAX),
    )


def verdict_view(verdict: GateVerdict) -> Json:
    return {
        "outcome": verdict.outcome.value,
        "consumer": verdict.consumer,
        "sentence": verdict.sentence,
    }


def running_view(found: tuple[tuple[Guest, GateVerdict | Refused], ...]) -> Json:
    """`claimed` and `refused`, each guest with its uuid and name, and why."""
    claimed: list[Json] = []
    refused: list[Json] = []
    for guest, result in found:
        who = {"consumer": guest.uuid, "name": guest.name}
        if isinstance(result, GateVerdict):
            claimed.append({**who, "sentence": result.sentence})
        else:
            refused.append({**who, "sentence": result.message})
    return {"claimed": claimed, "refused": refused}
