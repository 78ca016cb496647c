"""Guests that started while the agent was away are claimed by themselves where the gate is on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.agent import World, opened, told
from kits.api_client import serving
from kits.cli_process import plimsoll
from kits.placements import Placement
from kits.status import fetch, listening

from agent.daemon.host_agent import AT_ONCE_S
from agent.doctor.examine import NEW_DIRECTORY
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import ExitCode, Refused
from agent.gate import install
from agent.gate.effect import GatePaths

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
Open = Callable[..., World]


@pytest.fixture
def open_world(tmp_path: Path, placement: Placement) -> Iterator[Open]:
    worlds: list[World] = []
    paths = GatePaths(tmp_path / "hook", tmp_path / "gate.conf", tmp_path)
    (tmp_path / "gate.conf").write_text(f"socket = {tmp_path / 's'}\n")

    def open_it(*, gate: bool = True, more: str = "") -> World:
        if gate:
            paths.hook.write_text(install.hook_script())
            paths.hook.chmod(0o755)
        settings = told(tmp_path, placement, f"[api]\nsocket = {tmp_path / 's'}\n{more}")
        worlds.append(opened(settings, gate_paths=paths))
        return worlds[-1]

    yield open_it
    for world in worlds:
        world.close()


def guest(state: GuestState = GuestState.RUNNING, **used: int) -> Guest:
    return Guest(UUID, "web1", state, used or {"VCPU": 2, "MEMORY_MB": 1024})


def claims(world: World) -> set[str]:
    return {claim.consumer for _, claim in world.operations.instances() if claim}


def test_it_is_claimed_at_the_next_pass_and_the_commands_show_it(open_world: Open, tmp_path: Path) -> None:
    world = open_world()
    world.driver.add_guest(guest())
    world.agent.reconcile("the start")
    with serving(world.operations, tmp_path / "s"):
        shown = plimsoll(tmp_path / "s", "instances").stdout
        assert "web1" in shown and "claimed" in shown and "UNCLAIMED" not in shown
        looked = plimsoll(tmp_path / "s", "look")
        assert (looked.returncode, looked.stderr) == (ExitCode.DONE, "")
        assert "grant" in plimsoll(tmp_path / "s", "history", "--consumer", "web1").stdout
        assert "unclaimed" not in plimsoll(tmp_path / "s", "tree").stdout


def test_also_one_that_starts_past_the_hook_while_the_agent_runs(open_world: Open) -> None:
    world = open_world()
    world.agent.reconcile("the start")
    world.driver.add_guest(guest())
    world.agent.reconcile("an event")
    assert claims(world) == {UUID}


def test_one_that_does_not_fit_is_a_finding_and_is_claimed_once_it_fits(
    open_world: Open, tmp_path: Path
) -> None:
    world = open_world()
    world.driver.add_guest(guest(VCPU=100_000))
    world.agent.reconcile("the start")
    assert claims(world) == set()
    with serving(world.operations, tmp_path / "s"):
        found = plimsoll(tmp_path / "s", "look")
        assert found.returncode == ExitCode.DRIFT_FOUND
        assert "unclaimed instance" in found.stdout and "does not fit" in found.stdout
        assert "gate_refused" in plimsoll(tmp_path / "s", "history").stdout
    world.driver.remove_guest(UUID)
    world.driver.add_guest(guest())
    world.agent.reconcile("an event")
    assert claims(world) == {UUID}


@pytest.mark.parametrize(
    ("gate", "more"), [(False, ""), (True, "[gate]\nclaim_missed = false\n")], ids=["no gate", "switched off"]
)
def test_nothing_is_claimed_where_that_is_not_wanted(open_world: Open, gate: bool, more: str) -> None:
    world = open_world(gate=gate, more=more)
    world.driver.add_guest(guest())
    world.agent.reconcile("the start")
    assert claims(world) == set()


def test_a_domain_that_is_shut_off_is_not_claimed(open_world: Open) -> None:
    world = open_world()
    world.driver.add_guest(guest(GuestState.SHUTOFF))
    world.agent.reconcile("the start")
    assert claims(world) == set()


def test_a_running_guest_whose_claim_was_released_by_force_is_left_alone(open_world: Open) -> None:
    world = open_world()
    world.driver.add_guest(guest())
    world.agent.reconcile("the start")
    world.operations.release(UUID)
    world.agent.reconcile("its interval")
    assert claims(world) == set()


def test_tree_top_and_page_draw_unclaimed_use_on_its_own(open_world: Open, tmp_path: Path) -> None:
    world = open_world(gate=False)
    world.agent.reconcile("the start")
    world.driver.add_guest(guest(VCPU=2, MEMORY_MB=131_072))
    world.agent.reconcile("an event")
    with serving(world.operations, tmp_path / "s"):
        for command in (("tree",), ("top", "--once")):
            shown = plimsoll(tmp_path / "s", *command).stdout
            (memory,) = [line for line in shown.splitlines() if "MEMORY_MB  " in line and "/" in line]
            assert "▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░  " in memory and "(131072 unclaimed, total" in memory
        with listening(world.operations.host_status) as url:
            page = fetch(url + "/")[2].decode()
        assert '<rect class="unclaimed" x="0.0" width="50.1"' in page and "131072 unclaimed" in page
        assert '"MEMORY_MB": 131072' in plimsoll(tmp_path / "s", "tree", "-o", "json").stdout


def test_a_guest_that_was_off_before_the_state_directory_was_there_is_claimed_when_asked(
    open_world: Open, tmp_path: Path
) -> None:
    """One that is defined later, and is off, holds nothing: its start asks the gate."""
    world = open_world()
    world.driver.add_guest(guest(GuestState.SHUTOFF))
    world.agent.reconcile("the start")
    world.driver.add_guest(Guest(UUID.replace("5b2c", "6b2c"), "web2", GuestState.SHUTOFF, {"VCPU": 1}))
    world.agent.reconcile("another guest is defined")
    reasons = world.operations.status().reasons
    assert any(each.startswith(NEW_DIRECTORY) and "1 of the guests was here" in each for each in reasons)
    assert not claims(world)
    world.retries.clear()
    with serving(world.operations, tmp_path / "s"):
        world.retries.clear()
        done = plimsoll(tmp_path / "s", "gate", "claim-running")
        assert (done.returncode, done.stderr) == (ExitCode.DONE, "") and "web1" in done.stdout
        assert world.retries == [AT_ONCE_S], "the pass that takes the reasons back"
    assert claims(world) == {UUID}
    assert world.retries, "a pass is requested at once, which has status say so"
    world.agent.reconcile("its claim")
    assert not any(each.startswith(NEW_DIRECTORY) for each in world.operations.status().reasons)


def test_a_running_guest_is_claimed_beside_a_definition_that_names_its_device(open_world: Open) -> None:
    """Several definitions may name one card, to run in turn; none of them is claimed in a new directory."""
    world = open_world(gate=False)
    card = next(each for each in world.driver.describe().providers if "PGPU" in each.units)
    unit = UsedUnit("PGPU", card.units["PGPU"][0], card.device)
    off = UUID.replace("5b2c", "6b2c")
    world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 2, "PGPU": 1}, (unit,)))
    world.driver.add_guest(Guest(off, "web2", GuestState.SHUTOFF, {"VCPU": 1, "PGPU": 1}, (unit,)))
    world.agent.reconcile("the start")
    verdicts = {each.uuid: verdict for each, verdict in world.operations.claim_running()}
    assert claims(world) == {UUID}, verdicts
    assert isinstance(refused := verdicts[off], Refused) and "belongs to web1" in refused.message
