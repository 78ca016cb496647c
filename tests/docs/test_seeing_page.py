"""docs/seeing.md lists every metric, check, event and message id that there is, and none that is not."""

import re

from kits.paths import CHECKOUT
from kits.status import fill, sight
from prometheus_client.parser import text_string_to_metric_families

from agent.claims.claim import ClaimStep
from agent.moves.states import MoveStep
from agent.state.journal import RESHAPE_EVENT, WAIT_EVENT
from agent.status.overview import HostState
from agent.systemd.journald import MESSAGE_IDS

TEXT = (CHECKOUT / "docs" / "seeing.md").read_text(encoding="utf-8")


def rows(begin: str) -> list[list[str]]:
    """The cells of the table whose heading begins so."""
    table = TEXT[TEXT.index(begin) :].partition("\n\n")[0]
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def metrics() -> list[list[str]]:
    with sight() as shown:
        fill(shown)
        text = shown.host_status.metrics().decode()
    found = []
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("plimsoll_"):
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        samples = [each for each in family.samples if each.name == name] or family.samples
        labels = sorted({label for each in samples for label in each.labels} - {"le"})
        found.append([name, family.type, ", ".join(labels) or "-", family.documentation])
    return found


def test_every_metric_is_in_the_table() -> None:
    told = {row[0]: row for row in rows("| metric |")}
    for name, kind, labels, text in metrics():
        assert name in told, f"| `{name}` | {kind} | {labels} | {text} |"
        assert told[name][1] == kind and told[name][3] == text, f"| `{name}` | {kind} | {labels} | {text} |"
        assert labels in ("-", told[name][2])
    assert list(told) == sorted(told) and set(told) == {each[0] for each in metrics()}


def test_every_check_is_in_the_table() -> None:
    with sight() as shown:
        health = shown.host_status.health()
    told = [(row[0], row[1]) for row in rows("| probe |")]
    wanted = [("/livez", each.name) for each in health.live] + [
        ("/readyz", each.name) for each in health.ready
    ]
    assert told == wanted


def test_every_event_of_the_history_is_in_the_table() -> None:
    told = {name for row in rows("| event |") for name in re.findall(r"\w+", row[0])}
    others = {RESHAPE_EVENT, WAIT_EVENT, "pass", "refused", "move_refused", "gate_refused", "healed"}
    others |= {"clock_set", "resumed", "schedulers_stopped", "schedulers_back"}
    assert told == {*ClaimStep, *MoveStep, *others, HostState.READY, HostState.DEGRADED}


def test_every_message_id_is_in_the_table() -> None:
    assert {row[0]: row[1] for row in rows("| `EVENT=` |")} == MESSAGE_IDS
