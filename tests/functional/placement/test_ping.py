"""`plimsoll placement ping`: where, as whom, which versions, how fast, what is lacking."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kits.agent import told
from kits.placements import DATABASE, OpenStack, Placement
from kits.wire import Sent, Wire

from agent.cli.main import main
from agent.errors import ExitCode, PlacementError
from agent.placement.connect import USAGES_DEFECT, ping
from agent.placement.transport import Reply


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["placement", "ping", "-o", "json", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {}, said.err


def test_a_placement_that_will_do(
    placement: Placement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = told(tmp_path, placement).files[0]
    code, answer, _ = run(capsys, "--config-file", str(file))
    assert answer["microversions"] == {"lowest": "1.0", "highest": "1.39", "spoken": "1.39"}
    assert 0 < answer["round_trip_ms"]["best"] <= answer["round_trip_ms"]["median"] < 5000
    on_postgresql = os.environ.get(DATABASE, "").startswith("postgresql") and placement.kind == "remote"
    assert answer["lacking"] == ([USAGES_DEFECT] if on_postgresql else [])
    assert code == (ExitCode.DRIFT_FOUND if on_postgresql else ExitCode.DONE)
    assert answer["where"] == placement.options.get("endpoint_override", "embedded in the state directory")


def test_for_people(openstack: OpenStack, capsys: pytest.CaptureFixture[str]) -> None:
    main(["placement", "ping", "--url", openstack.options["endpoint_override"]])
    where, who, speaks, trip, *_ = capsys.readouterr().out.splitlines()
    assert where.endswith(openstack.options["endpoint_override"]) and "Keystone was not asked" in who
    assert speaks.endswith("1.0 to 1.39, spoken to in 1.39") and " ms at best" in trip


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, "--url", "http://127.0.0.1:9")
    assert code == ExitCode.FAILED
    assert json.loads(error)["error"]["code"] == "plimsoll.placement.unavailable"


def old(highest: str, forbidden: tuple[str, ...] = (), empty_body: int = 400, usages: int = 200) -> Wire:
    """A service that speaks up to `highest`, and refuses some paths."""

    def answer(sent: Sent) -> Reply:
        if sent.path == "/":
            return Reply(200, {"versions": [{"min_version": "1.0", "max_version": highest}]})
        if sent.path in forbidden:
            return Reply(403)
        if sent.path.startswith("/usages"):
            return Reply(usages)
        if [int(part) for part in sent.microversion.split(".")] > [int(part) for part in highest.split(".")]:
            return Reply(406)
        return Reply(200, {"resource_providers": []}) if sent.method == "GET" else Reply(empty_body)

    return Wire(answer=answer)


def test_an_older_service_lacks_what_the_agent_can_do_without() -> None:
    found = ping(old("1.36"), "a test")
    assert (found.used, found.address) == ("1.36", "a test")
    assert [each.split(":")[0] for each in found.lacking] == ["microversion 1.37", "microversion 1.38"]


def test_a_service_that_is_too_old_is_refused_with_what_is_missing() -> None:
    with pytest.raises(PlacementError, match=r"1\.0 to 1\.29, and the agent needs 1\.30"):
        ping(old("1.29"), "a test")


def test_rights_that_are_missing_are_named() -> None:
    found = ping(old("1.39", forbidden=("/reshaper", "/allocations")), "a test")
    assert ["role service or admin" in found.lacking[0], "role service there" in found.lacking[1]] == [
        True
    ] * 2
    with pytest.raises(PlacementError) as raised:
        ping(old("1.39", forbidden=("/resource_providers?name=",)), "a test")
    assert raised.value.status == 403


def test_a_service_that_cannot_add_up_a_project_is_shown() -> None:
    assert ping(old("1.39", usages=500), "a test").lacking == (USAGES_DEFECT,)
    assert ping(old("1.39", usages=403), "a test").lacking == ()


def test_what_answers_nonsense_is_no_placement() -> None:
    with pytest.raises(PlacementError, match="empty body"):
        ping(old("1.39", empty_body=204), "a test")
