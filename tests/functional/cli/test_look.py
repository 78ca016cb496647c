"""`plimsoll look` against a real agent, and what `plimsoll status` says of audits and of the next try."""

import json

from kits.agent import request
from kits.served_agent import ServedAgent

from agent.driver import Guest, GuestState
from agent.errors import ExitCode

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def test_findings_are_unknown_until_an_audit(agent: ServedAgent) -> None:
    before = agent("status")
    assert "\nfindings   not audited yet" in before.stdout
    assert "not audited yet" in agent("top", "--once").stdout
    assert json.loads(agent("status", "-o", "json").stdout)["audited"] is None
    agent.world.agent.run_audit()
    assert "\nfindings   none, audited 20" in agent("status").stdout
    assert "0 findings" in agent("top", "--once").stdout


def test_the_first_scheduled_audit_already_reports_what_differs(agent: ServedAgent) -> None:
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    agent.world.agent.run_audit()
    assert "\nfindings   1, which `plimsoll audit` shows" in agent("status").stdout


def test_the_first_scheduled_audit_repairs_nothing(agent: ServedAgent) -> None:
    lost = agent.world.operations.claim(request(VCPU=1))
    path = f"/allocations/{lost.consumer}"
    agent.world.wire.inner.request("DELETE", path, microversion="1.39")
    agent.world.agent.run_audit()
    assert lost.consumer in agent("instances").stdout
    agent.world.agent.run_audit()
    assert lost.consumer not in agent("instances").stdout


def test_look_makes_a_pass_and_an_audit_now(agent: ServedAgent) -> None:
    good = agent("look")
    assert (good.returncode, good.stderr) == (ExitCode.DONE, "")
    assert "\nfindings   none, audited 20" in good.stdout
    assert "After a look that was asked for" in good.stdout
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    found = agent("look")
    assert found.returncode == ExitCode.DRIFT_FOUND
    assert "\nunclaimed instance: " in found.stdout
    assert UUID in agent("instances").stdout


def test_look_says_why_it_ends_with_3_where_the_audit_found_nothing(agent: ServedAgent) -> None:
    unread = "libvirt does not answer for domain web1: timed out"
    assert agent("claim", UUID, "--resources", "VCPU=1").returncode == ExitCode.DONE
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}, problem=unread))
    looked = agent("look")
    assert looked.returncode == ExitCode.DRIFT_FOUND
    assert "\nfindings   none, audited" in looked.stdout
    assert f"\n\nthe audit found nothing, but the status gives 1 reason:\n  {unread}. " in looked.stdout
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    assert agent("look").returncode == ExitCode.DONE


def test_a_guest_that_is_merely_defined_never_alarms(agent: ServedAgent) -> None:
    agent.world.driver.add_guest(Guest(UUID, "template", GuestState.SHUTOFF, {"VCPU": 1}))
    assert agent("look").returncode == ExitCode.DONE
    assert "plimsoll_unclaimed_guests 0.0" in agent.world.operations.host_status.metrics().decode()


def test_after_a_fault_the_status_says_when_the_next_try_is_and_look_tries_now(agent: ServedAgent) -> None:
    agent.world.wire.cut = True
    away = agent("look")
    assert away.returncode == ExitCode.FAILED
    assert away.stderr == "plimsoll: Placement does not answer.\n"
    status = agent("status")
    assert "state      degraded\n           Placement does not answer.\n" in status.stdout
    assert "\nnext try   20" in status.stdout
    agent.world.wire.cut = False
    assert agent("look").returncode == ExitCode.DONE
    assert "next try" not in agent("status").stdout
