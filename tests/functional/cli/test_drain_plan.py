"""`plimsoll drain --plan`: whole agents on one served core, and where each instance of one host would go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kits.agent import request
from kits.api_client import serving
from kits.cli_process import one_line, plimsoll
from kits.try_fleet import Host

from agent.driver import Guest, GuestState
from agent.errors import ExitCode
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from drivers.fake.host import cell


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    """hv1 has 16 GiB; hv2 and hv3 have 4 GiB each."""
    with ExitStack() as stack:
        core = stack.enter_context(closing(Core.open(tmp_path / "placement")))
        server = stack.enter_context(Server(core, ["127.0.0.1:0"]))
        found = []
        for number, memory_mb in ((1, 16384), (2, 4608), (3, 4608)):
            host = Host(tmp_path / f"hv{number}", f"hv{number}", f"http://{server.addresses[0]}")
            stack.callback(host.world.close)
            host.world.driver.change(cells=(cell(0, frozenset(range(16)), memory_mb),), gpus=(), nics=())
            host.look("the start")
            stack.enter_context(serving(host.world.operations, host.directory / "s", threads=2))
            found.append(host)
        yield found


def guest(host: Host, name: str, memory_mb: int, state: GuestState = GuestState.RUNNING) -> str:
    """A guest with a claim."""
    asked = request(VCPU=1, MEMORY_MB=memory_mb)
    host.world.operations.claim(asked)
    amounts = {"VCPU": 1, "MEMORY_MB": memory_mb}
    host.world.driver.add_guest(Guest(asked.consumer, name, state, amounts))
    host.look("an event")
    return asked.consumer


def plan(host: Host, code: ExitCode) -> dict[str, list[dict[str, str]]]:
    done = plimsoll(host.directory / "s", "drain", "--plan", "-o", "json")
    assert (done.returncode, done.stderr) == (code, "")
    answer: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return answer


def test_each_instance_has_a_target_beside_those_that_go_before_it(hosts: list[Host]) -> None:
    """The two large ones fill a host each, and the small one finds what they leave."""
    source, *_ = hosts
    names = {
        guest(source, name, size): name for name, size in (("small", 700), ("big", 3000), ("large", 3100))
    }
    answer = plan(source, ExitCode.DONE)
    assert [names[move["instance"]] for move in answer["moves"]] == ["large", "big", "small"]
    targets = [move["to"] for move in answer["moves"]]
    assert set(targets[:2]) == {"hv2", "hv3"} and targets[2] in targets and answer["stay"] == []
    out = plimsoll(source.directory / "s", "drain", "--plan").stdout
    assert out.startswith("3 instances move, in this order:\nINSTANCE")
    assert f"virsh migrate --live --persistent --undefinesource big qemu+ssh://{targets[1]}/system" in out
    status = json.loads(plimsoll(source.directory / "s", "status", "-o", "json").stdout)
    assert status["pause"] is None, "a plan changes nothing"


def test_what_cannot_go_is_named_with_the_reason(hosts: list[Host]) -> None:
    source, second, third = hosts
    for name, size in (("a", 3000), ("b", 3000), ("c", 3000), ("vast", 6000)):
        guest(source, name, size)
    source.world.driver.add_guest(
        Guest("9f0c4f8a-63ca-4da2-bb74-dc6f8fc4553a", "wild", GuestState.RUNNING, {})
    )
    source.look("an event")
    answer = plan(source, ExitCode.REFUSED)
    assert len(answer["moves"]) == 2 and {move["to"] for move in answer["moves"]} == {"hv2", "hv3"}
    reasons = {each["name"] or "claimed": each["reason"] for each in answer["stay"]}
    assert len(answer["stay"]) == 3 and "no claim" in reasons["wild"]
    told = " ".join(each["reason"] for each in answer["stay"])
    assert "no host has room for it beside those that go before it" in told
    assert "; hv2, the nearest, lacks 6000 MEMORY_MB, of which 4096 of 4608 are free" in told
    for host in (second, third):
        host.world.driver.fail(10**4)
        host.look("an event")
    answer = plan(source, ExitCode.REFUSED)
    assert answer["moves"] == [] and len(answer["stay"]) == 5


def test_why_no_other_host_takes_it_is_told_though_this_one_has_room_and_who_is_closed(
    hosts: list[Host],
) -> None:
    source, _, third = hosts
    guest(source, "a", 5000)
    third.world.driver.fail(10**4)
    third.look("an event")
    (stays,) = plan(source, ExitCode.REFUSED)["stay"]
    nearest, closed = stays["reason"].split("; closed: ")
    lacks = "lacks 5000 MEMORY_MB, of which 4096 of 4608 are free"
    assert nearest == f"no other host has room for it; hv2, the nearest, {lacks}"
    assert closed.startswith("hv3 (closed: ")


def test_an_empty_host_has_an_empty_plan(hosts: list[Host]) -> None:
    done = plimsoll(hosts[0].directory / "s", "drain", "--plan")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing is left on this host\n")
    done = plimsoll(hosts[0].directory / "s", "drain", "--plan", "--follow")
    assert done.returncode == ExitCode.USAGE and "--plan changes nothing" in one_line(done)
