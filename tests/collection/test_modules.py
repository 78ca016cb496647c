"""The modules of the Ansible collection, played by ansible-core against agents on the fake driver."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml
from kits.doc_commands import Host, fenced, served_placement
from kits.playing import COLLECTIONS, ansible, play, playbook

pytestmark = pytest.mark.ansible

CELLS = [{"id": 0, "cpus": "0-7", "memory_mb": 131072}]
CARD = "0000:84:00.0"
HOST = {
    "cells": CELLS,
    "gpus": [{"address": CARD, "total": 1, "resource_class": "PGPU", "units": [CARD]}],
    "disk_gb": 100,
}
CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
MIGRATION = "0f6cbb1e-6a2f-4f0e-8f4a-2a9a1f8f3a11"
CLAIM = {"name": "web1", "resources": {"VCPU": 2, "MEMORY_MB": "{{ 2 * 256 }}"}}


def changed_collection(directory: Path, file: str, old: str, new: str) -> dict[str, str]:
    """The environment in which the collection is a copy, with another text in this file of its plug-ins."""
    shutil.copytree(COLLECTIONS / "ansible_collections", directory / "c" / "ansible_collections")
    path = directory / "c/ansible_collections/plimsoll/host/plugins" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return {"ANSIBLE_COLLECTIONS_PATH": str(directory / "c")}


def test_a_claim_is_made_once_and_released_once(tmp_path: Path) -> None:
    asked = {**CLAIM, "groups": [{"suffix": "gpu", "resources": {"PGPU": 1}}]}
    with Host(tmp_path, **HOST) as host:
        (would,) = play(host, {"claim": asked}, check=True)
        assert would["changed"] and would["diff"]["before"] == {}
        ((_, unit),) = would["diff"]["after"]["units"].items()
        assert unit == {"PGPU": [CARD]} and "web1" not in host.run("plimsoll instances")
        (nothing,) = play(host, {"claim": {"name": "web1", "state": "absent"}}, check=True)
        made, again = play(host, {"claim": asked}, {"claim": asked})
        assert made["changed"] and not again["changed"]
        assert made["consumer"] == again["consumer"] and made["claim"] == again["claim"]
        assert made["diff"]["after"] == would["diff"]["after"]
        (kept,) = play(host, {"claim": {**asked, "consumer": made["consumer"]}}, check=True)
        absent = {"claim": {"name": "web1", "state": "absent"}}
        (gone,) = play(host, absent, check=True)
        released, later = play(host, absent, absent)
        assert [each["changed"] for each in (nothing, kept, gone, released, later)] == [
            False,
            False,
            True,
            True,
            False,
        ]
        assert released["released"] and released["diff"]["before"] == made["diff"]["after"]


def test_a_play_that_was_interrupted_finds_its_claim(tmp_path: Path) -> None:
    with Host(tmp_path, **HOST) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=2,MEMORY_MB=512")
        again, other = play(host, {"claim": CLAIM}, {"claim": {**CLAIM, "resources": {"VCPU": 3}}})
        assert not again["changed"] and again["consumer"] == CONSUMER
        assert other["failed"] and "VCPU" in other["msg"] and other["error"] == "Conflict"
        (unlike,) = play(host, {"claim": {**CLAIM, "resources": {"VCPU": 3}}}, check=True)
        assert unlike["failed"] and "asks for something else" in unlike["msg"]


def test_a_uuid_is_known_however_it_is_written(tmp_path: Path) -> None:
    bare, braced = CONSUMER.replace("-", ""), f"{{{CONSUMER.upper()}}}"
    with Host(tmp_path, **HOST) as host:
        made, again, released = play(
            host,
            {"claim": {**CLAIM, "consumer": bare}},
            {"claim": {**CLAIM, "consumer": bare}},
            {"claim": {"consumer": braced, "state": "absent"}},
        )
        assert made["consumer"] == released["consumer"] == CONSUMER and not again["changed"]
        assert released["changed"] and "web1" not in host.run("plimsoll instances")


def test_a_claim_that_another_play_releases_meanwhile_is_absent(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    with Host(tmp_path / "host", **HOST) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
        (absent,) = play(
            host,
            {"claim": {"name": "web1", "state": "absent"}},
            environment=changed_collection(
                tmp_path,
                "modules/claim.py",
                "= agent.release(",
                "= agent.release(before.uuid) and agent.release(",
            ),
        )
        assert not absent.get("failed") and not absent["changed"], absent


def test_wrong_options_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    with Host(tmp_path, **HOST) as host:
        negative, aliases, drained, device = play(
            host,
            {"drain": {"wait": -1}},
            {"claim": {"name": "w1", "pci": [{"alias": "x"}]}},
            {"drain": {"state": "absent", "reason": "x", "wait": 5}},
            {"device": {"address": "0000:99:00.0", "state": "cleared", "reason": "x"}},
        )
        assert negative["failed"] and "0 or more" in negative["msg"]
        assert "any of the following are missing: resources" in aliases["msg"] and "pci" not in aliases["msg"]
        assert not drained["changed"] and drained["warnings"] == [
            f"`{name}` does nothing with `state: absent`" for name in ("reason", "wait")
        ]
        unused, unknown = device["warnings"]
        assert "`reason` does nothing" in unused and "Nothing was cleared: 0000:99:00.0" in unknown


def test_a_play_that_an_agent_let_wait_is_run_again(tmp_path: Path) -> None:
    with Host(tmp_path, **HOST) as host:
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        (unknown,) = play(host, {"claim": {**CLAIM, "timeout": 2}})
        os.kill(pid, signal.SIGCONT)
        assert unknown["failed"] and "did not answer within 2 s" in unknown["msg"]
        done, again = play(host, {"claim": CLAIM}, {"claim": CLAIM})
        assert not done.get("failed") and not again["changed"]
        assert len(json.loads(host.run("plimsoll instances -o json"))["instances"]) == 1


def test_a_refusal_says_what_is_lacking(tmp_path: Path) -> None:
    asked = {"claim": {"name": "big", "flavor": {"vcpus": 4, "memory_mb": 1 << 20}}}
    with Host(tmp_path, **HOST) as host:
        (refused,), (would_be,) = play(host, asked), play(host, asked, check=True)
        assert refused["failed"] and refused["error"] == "Refused"
        assert refused["details"]["shortfalls"][0]["resource_class"] == "MEMORY_MB"
        assert would_be["failed"] and would_be["shortfalls"][0]["resource_class"] == "MEMORY_MB"
        host.run("plimsoll pause --reason 'a test'")
        (closed,), (would_be,) = play(host, {"claim": CLAIM}), play(host, {"claim": CLAIM}, check=True)
        assert closed["error"] == "Closed" and "a test" in closed["msg"] and "a test" in would_be["msg"]


def test_extra_specs_are_written_as_people_write_them(tmp_path: Path) -> None:
    flavor = {"vcpus": 2, "memory_mb": 512, "disk_gb": 1}
    asked = {
        **flavor,
        "extra_specs": {"hw:cpu_policy": "shared", "resources:PGPU": "1", "hw:hide_hypervisor_id": True},
    }
    with Host(tmp_path, **HOST) as host:
        (made,) = play(host, {"claim": {"name": "web1", "flavor": asked}})
        assert made["changed"], made


def test_the_first_alternative_that_fits_is_claimed_and_kept_by_a_resize(tmp_path: Path) -> None:
    specs = {"resources:VGPU": "1", "plimsoll:or2:resources:VGPU": "", "plimsoll:or2:resources:PGPU": "1"}
    flavor = {"flavor": {"vcpus": 1, "memory_mb": 512, "extra_specs": specs}}
    groups = {"resources": {"VGPU": 1}, "alternatives": [{"resources": {"VCPU": "{{ 1 + 1 }}"}}]}
    with Host(tmp_path, **HOST) as host:
        (would,) = play(host, {"claim": {"name": "web1", **flavor}}, check=True)
        made, again, other = play(
            host,
            {"claim": {"name": "web1", **flavor}},
            {"claim": {"name": "web1", **flavor}},
            {"claim": {"name": "web2", **groups}},
        )
        assert [each["changed"] for each in (would, made, again, other)] == [True, True, False, True]
        assert [each["claim"]["request"]["alternative"] for each in (made, again, other)] == [2, 2, 2]
        begun = {"consumer": other["consumer"], "kind": "resize", "state": "begun"}
        less = {"resources": {"VCPU": 1}, "alternatives": [{"resources": {"VCPU": 3}}]}
        kept, reverted, first = play(
            host,
            {"move": {**begun, **less}},
            {"move": {"state": "reverted", "consumer": other["consumer"]}},
            {"move": {**begun, **less, "alternative": 0}},
        )
        assert reverted["changed"], reverted
        assert [each["move"]["new"]["request"]["alternative"] for each in (kept, first)] == [2, 1]


def test_a_domain_is_claimed_and_completed(tmp_path: Path) -> None:
    with Host(tmp_path, **HOST) as host:
        host.libvirt.define("web1", CONSUMER)
        file = host.libvirt.store / "web1.xml"
        asked = {"claim": {"domain_file": str(file), "groups": [{"suffix": "gpu", "resources": {"PGPU": 1}}]}}
        (would,) = play(host, asked, check=True)
        made, again = play(host, asked, asked)
        assert [would["changed"], made["changed"], again["changed"]] == [True, True, False]
        assert made["consumer"] == CONSUMER and "bus='0x84'" in made["xml"].replace('"', "'")
        (released,) = play(host, {"claim": {"domain_file": str(file), "state": "absent"}})
        assert released["changed"] and released["consumer"] == CONSUMER


def test_a_host_is_drained_and_taken_back(tmp_path: Path) -> None:
    drained = {"drain": {"reason": "new firmware", "schedulers": True}}
    with Host(tmp_path, **HOST) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
        (would,) = play(host, drained, check=True)
        assert would["changed"] and "new firmware" not in host.run("plimsoll status")
        once, again, late = play(host, drained, drained, {"drain": {"wait": 1}})
        assert once["changed"] and not again["changed"] and again["pause"]["reason"] == "new firmware"
        assert not once["drained"] and [each["name"] for each in once["left"]] == ["web1"]
        assert late["failed"] and late["msg"] == "Still on this host after 1 s: web1"
        host.run("plimsoll release web1")
        empty, resumed, open_ = play(
            host, {"drain": {"wait": 5}}, {"drain": {"state": "absent"}}, {"drain": {"state": "absent"}}
        )
        assert empty["drained"] and not empty["changed"]
        assert resumed["changed"] and not open_["changed"] and resumed["claims_closed"] == ""


def test_a_device_is_kept_from_guests_and_given_back(tmp_path: Path) -> None:
    cordon = {"device": {"address": CARD, "reason": "to be replaced"}}
    with Host(tmp_path, **HOST) as host:
        (would,) = play(host, cordon, check=True)
        assert would["changed"] and would["devices"][0]["cordon"] is None
        done, again, same, other = play(
            host, cordon, cordon, {"device": {"address": CARD}}, {"device": {"address": CARD, "reason": "x"}}
        )
        assert done["devices"][0]["cordon"]["reason"] == "to be replaced"
        assert [each["changed"] for each in (done, again, same, other)] == [True, False, False, True]
        cleared, twice, never, unknown = play(
            host,
            {"device": {"address": CARD, "state": "cleared"}},
            {"device": {"address": CARD, "state": "cleared"}},
            {"device": {"address": "0000:99:00.0", "state": "cleared"}},
            {"device": {"address": "0000:99:00.0"}},
        )
        assert [each["changed"] for each in (cleared, twice, never)] == [True, False, False]
        assert unknown["failed"] and "no device that this host offers" in unknown["msg"]


def test_a_card_is_kept_from_guests_with_all_its_functions(tmp_path: Path) -> None:
    nic = {"ifname": "eth0", "address": "0000:a1:00.0", "vfs": ["0000:a1:02.0", "0000:a1:02.1"]}
    card, function = ({"device": {"address": address}} for address in ("0000:A1:00.0", "0000:a1:02.1"))
    cleared = {"device": {**card["device"], "state": "cleared"}}
    with Host(tmp_path, **HOST, nics=[nic]) as host:
        done, again, one, back, twice = play(host, card, card, function, cleared, cleared)
        assert [each["changed"] for each in (done, again, one, back, twice)] == [
            True,
            False,
            True,
            True,
            False,
        ]
        assert [each["unit"] for each in done["devices"]] == nic["vfs"]
        assert "0000:a1:02.1" in host.run("plimsoll devices list")


def test_what_is_to_be_seen_and_where_a_guest_fits(tmp_path: Path) -> None:
    everything = {"info": {"gather_subset": ["status", "instances", "devices", "moves", "findings", "tree"]}}
    with Host(tmp_path, **HOST) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
        found, fits, never = play(
            host,
            everything,
            {"where": {"flavor": {"vcpus": 1, "memory_mb": 512}}},
            {"where": {"resources": {"VCPU": 4096}}},
        )
        assert found["status"]["state"] == "ready" and found["findings"] == found["moves"] == []
        assert [each["uuid"] for each in found["instances"]] == [CONSUMER]
        assert found["devices"][0]["unit"] == CARD and found["tree"]["resource_providers"]
        assert (fits["verdict"], never["verdict"]) == ("fits", "never") and fits["places"][0][
            "host"
        ] == "node1"
        assert not any(each["changed"] for each in (found, fits, never))


def test_a_move_is_begun_confirmed_and_reverted_once(tmp_path: Path) -> None:
    with served_placement(tmp_path) as section:
        for name in ("hv1", "hv2"):
            (tmp_path / name).mkdir()
        with (
            Host(tmp_path / "hv1", "hv1", section, **HOST) as source,
            Host(tmp_path / "hv2", "hv2", section, **HOST) as destination,
        ):
            source.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
            begun = {"consumer": CONSUMER, "kind": "cold_migrate", "resources": {"VCPU": 1}, "state": "begun"}
            (would,) = play(destination, {"move": begun}, check=True)
            (too_big,) = play(destination, {"move": {**begun, "resources": {"VCPU": 4096}}}, check=True)
            assert would["changed"] and "move" not in would and "It does not fit" in too_big["msg"]
            once, again = play(destination, {"move": begun}, {"move": begun})
            assert once["changed"] and not again["changed"] and once["move"]["state"] == "begun"
            migration = once["move"]["migration"]
            (would,) = play(source, {"move": {"state": "reverted", "consumer": CONSUMER}}, check=True)
            back = {"move": {"state": "reverted", "migration": migration, "wait": 30}}
            reverted, twice, confirmed = play(
                source, back, back, {"move": {"state": "confirmed", "migration": migration}}
            )
            assert [would["changed"], reverted["changed"], twice["changed"]] == [True, True, False]
            assert confirmed["failed"] and confirmed["error"] == "Conflict"
            once, done, ended, begun_again = play(
                destination,
                {"move": {**begun, "migration": MIGRATION}},
                {"move": {"state": "confirmed", "consumer": CONSUMER, "wait": 30}},
                {"move": {"state": "confirmed", "migration": MIGRATION}},
                {"move": {**begun, "migration": MIGRATION}},
            )
            assert done["move"]["ended"] and done["move"]["state"] == "confirmed"
            assert [each["changed"] for each in (once, done, ended, begun_again)] == [
                True,
                True,
                False,
                False,
            ]
            (unknown,) = play(destination, {"move": {"state": "confirmed", "consumer": MIGRATION}})
            assert unknown["failed"] and "knows no move" in unknown["msg"]


def test_no_agent_and_no_package_are_errors_with_a_remedy(tmp_path: Path) -> None:
    with Host(tmp_path, **HOST) as host:
        away, long = play(
            host, {"info": {"socket": str(tmp_path / "none")}}, {"info": {"socket": "/" + "x" * 200}}
        )
        assert away["error"] == "Unavailable" and "systemctl status plimsoll-agent" in away["msg"]
        assert long["error"] == "InvalidRequest"
        (missing,) = play(host, {"info": {}}, python="/usr/bin/python3")
        assert missing["failed"] and "/opt/plimsoll" in missing["msg"]
        assert "ansible_python_interpreter" in missing["msg"] and "the agent. It comes" in missing["msg"]


def test_the_package_is_found_where_the_agent_is_installed(tmp_path: Path) -> None:
    """The environment of the wheel is another one here, so the collection is changed to look there."""
    environment = changed_collection(
        tmp_path, "module_utils/agent.py", "/opt/plimsoll/bin/python3", sys.executable
    )
    (tmp_path / "host").mkdir()
    with Host(tmp_path / "host", **HOST) as host:
        (found,) = play(
            host,
            {"info": {"gather_subset": ["status"]}},
            python="/usr/bin/python3",
            environment=environment,
        )
        assert found["status"]["host"] == "node1"


def test_the_plays_of_the_page(tmp_path: Path) -> None:
    gpu, update = (yaml.safe_load(fenced("ansible.md", "yaml", number)) for number in (0, 2))
    with Host(tmp_path, **HOST) as host:
        assert f'"msg": "{CARD}"' in playbook(gpu, host)
        host.run("plimsoll release web1")
        assert "ok=5    changed=2 " in playbook(update, host)
        assert "claims     0, open" in host.run("plimsoll status")


@pytest.mark.parametrize("name", ["claim", "move", "drain", "device", "info", "where", "fleet"])
def test_each_has_its_page(name: str) -> None:
    kind = "inventory" if name == "fleet" else "module"
    page = ansible("ansible-doc", "-t", kind, f"plimsoll.host.{name}").stdout
    assert "EXAMPLES" in page.upper() and ("RETURN VALUES" in page.upper() or kind == "inventory")
