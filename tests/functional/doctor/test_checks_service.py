"""The doctor's checks of the running agent and of its Placement."""

from pathlib import Path
from typing import Any

import pytest

from agent.config.settings import load
from agent.doctor import checks_service
from agent.doctor.check import CheckVerdict, DoctorCheck
from agent.errors import DaemonUnreachable, Forbidden, PlimsollError

STATUS = {"pid": 7, "version": "1", "state": "ready", "reasons": [], "claims": {"count": 3}}


def agent_check(socket: Path, answer: Any) -> DoctorCheck:
    def ask(_: str) -> Any:
        if isinstance(answer, PlimsollError):
            raise answer
        return answer

    (check,) = checks_service.agent(socket, ask)
    return check


def test_a_ready_agent_is_good(tmp_path: Path) -> None:
    check = agent_check(tmp_path / "s", STATUS)
    assert (check.verdict, check.sentence) == (
        CheckVerdict.GOOD,
        "The agent (pid 7, 1) is ready, with 3 claims.",
    )


def test_a_state_directory_that_is_younger_than_the_guests_is_a_warning(tmp_path: Path) -> None:
    reason = f"{checks_service.NEW_DIRECTORY}, and 2 of the guests were here before it."
    ready, warned = checks_service.agent(tmp_path / "s", lambda _: {**STATUS, "reasons": [reason, "Else."]})
    assert ready.verdict is CheckVerdict.GOOD
    assert (warned.verdict, warned.sentence) == (CheckVerdict.WARNING, reason)
    assert "state_path" in warned.remedy


@pytest.mark.parametrize(
    ("reasons", "shown"), [(["Libvirt is away."], "Libvirt is away."), ([], "no reason")]
)
def test_a_degraded_agent_is_bad_with_its_reasons(tmp_path: Path, reasons: list[str], shown: str) -> None:
    check = agent_check(tmp_path / "s", {**STATUS, "state": "degraded", "reasons": reasons})
    assert check.verdict is CheckVerdict.BAD and shown in check.sentence


def test_an_agent_that_does_not_run_or_refuses_is_a_warning(tmp_path: Path) -> None:
    away = agent_check(tmp_path / "s", DaemonUnreachable("No agent."))
    assert away.verdict is CheckVerdict.WARNING and "systemctl start plimsoll-agent" in away.remedy
    refused = agent_check(tmp_path / "s", Forbidden("Uid 7 may not."))
    assert refused.sentence == "Uid 7 may not." and "[api] readers" in refused.remedy


def test_the_embedded_placement_is_good_and_a_silent_one_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    base = f"[DEFAULT]\ncompute_driver = fake\nstate_path = {tmp_path}\n[placement]\n"
    file.write_text(f"{base}kind = embedded\n")
    (embedded,) = checks_service.placement(load((file,)))
    assert embedded.verdict is CheckVerdict.GOOD and "embedded" in embedded.sentence
    file.write_text(f"{base}kind = remote\nauth_type = none\nendpoint_override = http://127.0.0.1:1\n")
    (silent,) = checks_service.placement(load((file,)))
    assert silent.verdict is CheckVerdict.BAD and "placement ping" in silent.remedy
