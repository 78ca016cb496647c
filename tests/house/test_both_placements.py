"""Every functional test runs on the embedded core and on OpenStack Placement, or says here why not."""

from __future__ import annotations

import re
from pathlib import Path

from kits.paths import CHECKOUT

FUNCTIONAL = CHECKOUT / "tests" / "functional"
FIXTURE = re.compile(r"\b(placement|any_placement|openstack): (Placement|OpenStack)\b")
MADE_OVER_ONE = re.compile(r"^def (\w+)\(.*\bplacement: Placement\b", re.M)
NOT_ON_BOTH = {
    "daemon/test_offline.py": "the state directory, its lock and the journal; cli/test_reshape.py has both",
    "api/test_server.py": "the socket and its routes",
    "api/test_openapi.py": "documents, and what no route takes",
    "api/test_alternatives.py": "which request is tried; a claim and a move of it are written as all are",
    "cli/test_claim.py": "what the commands print; audit/test_auditor.py has the repair on both",
    "cli/test_claimed_program.py": "processes of one host; a release is written as all are",
    "cli/test_domain.py": "what is written of a claim, and two agents on one core; as tracker/test_moves.py",
    "carving/test_carver.py": "sysfs and files alone",
    "cli/test_drain_plan.py": "questions of a served core; fleet/test_answer.py asks both",
    "cli/test_devices.py": "sysfs, and a record of the agent; a reservation is written as all are",
    "cli/test_pause.py": "a record of the agent; the trait is written as all traits are",
    "cli/test_service.py": "files alone",
    "cli/test_names.py": "two agents on one embedded core, and what is shown of the agent's memory",
    "cli/test_main.py": "what all commands have in common, and placements that do not answer",
    "cli/test_config.py": "files alone, and the embedded core's file",
    "cli/test_quiet_host.py": "what is shown of the host, and the state directory with its embedded core",
    "cli/test_where.py": "what is shown of a served core; fleet/test_answer.py asks both",
    "cli/test_terraform.py": "what the commands read and write; a claim is written as all are",
    "cli/test_top.py": "what is shown of the agent's memory, of one host for a whole module",
    "cli/test_explain.py": "what is shown of the agent's memory, of one host for a whole module",
    "client/test_agent.py": "what the package makes of the local API's answers",
    "client/test_placement.py": "the embedded core, in the process and served",
    "client/test_ssh.py": "the way to an agent",
    "client/test_failures.py": "servers that do not answer like an agent",
    "daemon/test_bound_agents.py": "tokens that OpenStack Placement does not have",
    "daemon/test_one_writer.py": "both: the core that another agent serves, and an OpenStack Placement",
    "doctor/test_examine.py": "files, users, the embedded core, and a placement that does not answer",
    "placement/embedded/test_serve.py": "the embedded core's own HTTP",
    "gate/test_effect.py": "the hook's file and libvirt's pid files",
    "http/test_raw_requests.py": "the HTTP server alone",
    "http/test_server.py": "the HTTP server alone",
    "placement/test_connect.py": "opens each kind itself",
    "placement/test_several_servers.py": "servers of one core, and answers that a real one does not give",
    "status/test_host_status.py": "what is shown of the agent's memory, of one host for a whole module",
    "daemon/test_full_disk.py": "the state directory, and the embedded core's file in it",
    "daemon/test_stalled_journal.py": "the agent's own disk",
    "tracker/test_guarded_write.py": "faults that a real server does not produce, on the embedded core",
    "tracker/test_stalled_disk.py": "the disk of the agent and of the embedded core",
    "doctor/test_bundle.py": "what is collected of a host whose placement is away",
}


def on_openstack_too() -> set[str]:
    """What `./dev test-remote` runs with PLIMSOLL_TEST_PLACEMENT=openstack."""
    function = (CHECKOUT / "dev").read_text().partition("test_remote() {")[2].partition("\n}\n")[0]
    told = re.findall(r"tests/functional/([\w/]+/test_[\w*]+\.py)", function)
    return {str(found.relative_to(FUNCTIONAL)) for each in told for found in FUNCTIONAL.glob(each)}


def takes_a_placement(file: Path) -> bool:
    """By a fixture of its own, or by one that the folder's conftest makes over a placement."""
    text, conftest = file.read_text(), file.with_name("conftest.py")
    made = MADE_OVER_ONE.findall(conftest.read_text()) if conftest.exists() else []
    return FIXTURE.search(text) is not None or any(
        re.search(rf"^def test_\w+\([^)]*\b{name}: ", text, re.M)
        and not re.search(rf"^def {name}\((?!{name}: )", text, re.M)
        for name in made
    )


def test_each_file_runs_on_both_or_has_a_reason() -> None:
    files = {
        str(each.relative_to(FUNCTIONAL))
        for each in FUNCTIONAL.rglob("test_*.py")
        if each.name == "test_serve.py" or "embedded" not in each.parts
    }
    by_fixture = {name for name in files if takes_a_placement(FUNCTIONAL / name)}
    on_both = by_fixture | on_openstack_too()
    assert files - on_both == NOT_ON_BOTH.keys() - by_fixture
    assert not on_both & NOT_ON_BOTH.keys()
