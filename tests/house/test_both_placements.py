"""Every functional test runs on the embedded core and on OpenStack Placement, or says here why not."""

from __future__ import annotations

import re

from kits.paths import CHECKOUT

FUNCTIONAL = CHECKOUT / "tests" / "functional"
FIXTURE = re.compile(r"\b(placement|any_placement|openstack): (Placement|OpenStack)\b")
NOT_ON_BOTH = {
    "test_adopt.py": "the host's uuid and the journal; placement is not asked",
    "test_api.py": "the socket and its routes, over a host without a placement",
    "test_api_access.py": "who may ask, over a host without a placement",
    "test_api_openapi.py": "documents, over a host without a placement",
    "test_cli.py": "what commands print, over a host without a placement",
    "test_cli_config.py": "files alone",
    "test_cli_edges.py": "signals, pipes and terminals, over a host without a placement",
    "test_cli_help.py": "texts alone",
    "test_cli_seeing.py": "what is shown of the agent's memory, of one host for a whole module",
    "test_docs_build.py": "documents alone",
    "test_docs_cli_api.py": "documents alone",
    "test_docs_seeing.py": "documents alone",
    "test_doctor.py": "the state directory, and the embedded core's file in it",
    "test_door.py": "the embedded core's own HTTP",
    "test_door_access.py": "the embedded core's own HTTP",
    "test_init.py": "what is proposed for a host before there is an agent",
    "test_monitoring_files.py": "documents alone",
    "test_placement_transfer.py": "carries contents between both kinds itself",
    "test_seeing.py": "what is shown of the agent's memory, of one host for a whole module",
    "test_support_bundle.py": "what is collected of a host whose placement is away",
}


def on_openstack_too() -> set[str]:
    """What `./dev test-remote` runs with PLIMSOLL_TEST_PLACEMENT=openstack."""
    function = (CHECKOUT / "dev").read_text().partition("test_remote() {")[2].partition("\n}\n")[0]
    told = re.findall(r"tests/functional/(test_[\w*]+\.py)", function)
    return {found.name for each in told for found in FUNCTIONAL.glob(each)}


def test_each_file_runs_on_both_or_has_a_reason() -> None:
    files = {each.name for each in FUNCTIONAL.glob("test_*.py")}
    by_fixture = {name for name in files if FIXTURE.search((FUNCTIONAL / name).read_text())}
    on_both = by_fixture | on_openstack_too()
    assert files - on_both == NOT_ON_BOTH.keys() - by_fixture
    assert not on_both & NOT_ON_BOTH.keys()
