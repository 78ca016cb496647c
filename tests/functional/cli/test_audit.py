"""`plimsoll audit` as a process against a served host, and the running agent's own audit."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kits.agent import opened, request, told
from kits.api_host import SmallHost
from kits.cli_process import one_line, plimsoll
from kits.placements import usual_placement
from kits.served_agent import ServedAgent

from agent.api.operations import Operations
from agent.audit.finding import Finding
from agent.audit.repair import DropClaim
from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
LEAKED = Finding(
    "leaked claim",
    CONSUMER,
    "It is gone.",
    {"placement": {}},
    own=True,
    repair=(DropClaim(CONSUMER),),
)


def test_each_finding_is_shown_and_the_exit_code_tells(host: SmallHost, path: Path) -> None:
    """Scenario 113."""
    done = plimsoll(path, "audit")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing differs\n")
    host.findings = (LEAKED,)
    for options in ((), ("--dry-run",)):
        done = plimsoll(path, "audit", *options)
        assert done.returncode == ExitCode.DRIFT_FOUND
        assert done.stdout == (
            f"leaked claim: It is gone.\n  placement: nothing\n  repair: release the claim of {CONSUMER}\n"
        )
    done = plimsoll(path, "audit", "--heal", "-o", "json")
    assert done.returncode == ExitCode.DRIFT_HEALED
    assert '"healed": true' in done.stdout


def test_the_agent_finds_and_heals_what_it_leaked(tmp_path: Path) -> None:
    """Scenario 112."""
    world = opened(told(tmp_path, usual_placement(tmp_path)))
    try:
        agent: Operations = world.operations
        world.agent.reconcile("the start")
        kept, lost = (agent.claim(request(VCPU=1, MEMORY_MB=64)) for _ in range(2))
        assert agent.audit(heal=False).findings == ()
        world.wire.inner.request("DELETE", f"/allocations/{lost.consumer}", microversion="1.39")
        for _ in range(2):
            assert lost.consumer in {claim.consumer for _, claim in agent.instances() if claim}
            world.agent.run_audit()
        assert [claim for _, claim in agent.instances() if claim] == [kept]
        assert agent.audit(heal=False).findings == ()
        assert agent.status()["findings"] == 0
    finally:
        world.close()


@pytest.mark.parametrize("form", [str, lambda uuid: uuid.replace("-", "").upper()])
def test_of_an_instance_that_no_one_knows_the_audit_says_that(
    agent: ServedAgent, form: Callable[[str], str]
) -> None:
    known = agent.world.operations.claim(request(VCPU=1)).consumer
    assert agent("audit", form(known)).stdout == "nothing differs\n"
    done = agent("audit", form(CONSUMER))
    assert done.returncode == ExitCode.FAILED
    assert CONSUMER in one_line(done) and "no consumer" in done.stderr
    root = next(iter(agent.world.operations.providers())).uuid
    done = agent("audit", root)
    assert done.returncode == ExitCode.FAILED and "neither an instance nor a migration" in one_line(done)
