"""Questions of libvirt's hook, and the gate's verdicts in the shapes of the local API."""

from agent.api.shapes.gate import ClaimedRunningShape, GuestVerdictShape, VerdictShape
from agent.driver import Guest
from agent.errors import Refused, UsageError
from agent.gate.decision import GateVerdict, HookCall
from agent.json_checks import read_object, read_text

WORD_MAX = 64
XML_MAX = 2**20
KEYS = ("operation", "sub_operation", "extra", "xml")


def parse_hook_call(body: object) -> HookCall:
    """The question of the hook, in libvirt's words. Raises UsageError where a key is missing or wrong."""
    given = read_object(body, "", KEYS)
    for key in ("operation", "sub_operation", "xml"):
        if key not in given:
            raise UsageError(f"{key}: missing; the gate needs it.", path=key)
    read_text(given.get("extra", "-"), "extra", None, "a word", WORD_MAX)
    return HookCall(
        read_text(given["operation"], "operation", None, "a word", WORD_MAX),
        read_text(given["sub_operation"], "sub_operation", None, "a word", WORD_MAX),
        read_text(given["xml"], "xml", None, "the domain's XML", XML_MAX),
    )


def verdict_view(verdict: GateVerdict) -> VerdictShape:
    """The verdict on the guest that the hook asked about."""
    order = verdict.cpu_power
    return {
        "outcome": verdict.outcome.value,
        "consumer": verdict.consumer,
        "sentence": verdict.sentence,
        "cpu_power": None if order is None else {"cpus": list(order.cpus), "state": order.state},
    }


def running_view(verdicts: tuple[tuple[Guest, GateVerdict | Refused], ...]) -> ClaimedRunningShape:
    """The verdicts on the guests that run without a claim."""
    claimed: list[GuestVerdictShape] = []
    refused: list[GuestVerdictShape] = []
    for guest, verdict in verdicts:
        if isinstance(verdict, GateVerdict):
            claimed.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.sentence})
        else:
            refused.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.message})
    return {"claimed": claimed, "refused": refused}
