"""The Debian package on a hypervisor with guests: upgraded in place, gone back from, upgraded with a look
before; and what its units do there; in this order.
"""

import os
import re
from typing import Any

import pytest
from kits.lab_node import UNIT, Node

PACKAGE = "PLIMSOLL_DEB"
OLDER_PACKAGE = "PLIMSOLL_DEB_BEFORE"
STATE = "/var/lib/plimsoll"
GATED = "b0000000-0000-4000-8000-000000000011"
LATER = "b0000000-0000-4000-8000-000000000012"
ALSO = "b0000000-0000-4000-8000-000000000013"
SETTINGS = """[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
"""
EXPOSURE_MAX = 1.5
LEFT = {"/run/plimsoll-devices"}
"""The paths that stay after a purge, as docs/removing.md has them."""
WATCHDOG_S = 30

pytestmark = pytest.mark.skipif(
    not os.environ.get(PACKAGE) or not os.environ.get(OLDER_PACKAGE),
    reason=f"{PACKAGE} and {OLDER_PACKAGE} do not name two Debian packages, the second one the older",
)


def install(node: Node, package: str) -> str:
    """The version that is there afterwards. Nobody answers questions."""
    node.run(
        f"DEBIAN_FRONTEND=noninteractive apt-get install -qy --allow-downgrades {package} </dev/null 2>&1 | "
        "tail -n 2; dpkg --audit plimsoll"
    )
    return node.run("dpkg-query -W -f '${Version}' plimsoll", note=False)


def claims(node: Node) -> dict[str, Any]:
    """{consumer: what it holds, where, and its exact units}"""
    claimed = [
        each["claim"] for each in node.json("plimsoll -o json instances")["instances"] if each["claim"]
    ]
    return {each["consumer"]: (each["allocations"], each["units"]) for each in claimed}


def reserved_mb(node: Node) -> int:
    """Memory of the host that no guest is given."""
    (root,) = [each for each in node.providers().values() if each["parent_provider_uuid"] is None]
    return int(root["inventories"]["MEMORY_MB"]["reserved"])


def guest(node: Node) -> tuple[str, str]:
    """Its process and its state."""
    return node.ask("pgrep -f guest=gated").strip(), node.ask("virsh domstate gated").strip()


def pid(node: Node) -> int:
    return int(node.json("plimsoll -o json status")["pid"])


def shown(node: Node, unit: str, *properties: str) -> list[str]:
    """The values of a unit's properties."""
    told = node.ask(f"systemctl show {unit} {' '.join(f'-p {name}' for name in properties)}")
    found = dict(line.split("=", 1) for line in told.splitlines())
    return [found[name] for name in properties]


@pytest.fixture(scope="module")
def files_before(bare: Node) -> set[str]:
    """What has `plimsoll` in its name on a node without the package."""
    return bare.named_plimsoll()


@pytest.fixture(scope="module")
def before(bare: Node, files_before: set[str]) -> dict[str, Any]:
    """The older package, a claim made by hand, and a guest that the gate let in with a function."""
    bare.title("An older package is there, with a guest and with claims")
    bare.run("labdev vfs 0000:41:00.0 2", note=False)
    install(bare, "/root/older/plimsoll_*.deb")
    bare.write("/etc/plimsoll/conf.d/devices.conf", SETTINGS)
    bare.start()
    bare.wait("the functions are seen", bare.devices)
    bare.run("plimsoll gate enable && systemctl restart libvirtd && sleep 5")
    bare.ready()
    bare.run(f"labvm create gated uuid={GATED} vf=0000:41:10.2")
    bare.run(f"plimsoll claim {LATER} --name later --resources VCPU=1,MEMORY_MB=64,SRIOV_NET_VF=1")
    found = claims(bare)
    assert set(found) == {GATED, LATER} and "0000:41:10.2" in str(found[GATED])
    return found


def test_an_upgrade_in_place_keeps_claims_and_guests(bare: Node, before: dict[str, Any]) -> None:
    bare.title("The upgrade, in place")
    status, there = bare.json("plimsoll -o json status"), guest(bare)
    older = bare.run("dpkg-query -W -f '${Version}' plimsoll", note=False)
    assert install(bare, "/root/plimsoll_*.deb") != older
    bare.ready()
    after = bare.json("plimsoll -o json status")
    assert after["uuid"] == status["uuid"] and after["pid"] != status["pid"]
    assert claims(bare) == before
    assert guest(bare) == there and there[1] == "running"
    assert "enabled" in bare.run("plimsoll gate status")
    bare.run("plimsoll status; plimsoll instances; plimsoll audit")
    bare.run(f"labvm create also uuid={ALSO}")
    assert ALSO in claims(bare), "the gate claims with the new version's hook"
    bare.run("virsh destroy also", note=False)
    bare.wait("its claim goes with it", lambda: claims(bare) == before)


def test_going_back_is_as_the_documentation_says(bare: Node, before: dict[str, Any]) -> None:
    """With the copies that the upgrade made, where the older version cannot read what the newer one wrote."""
    bare.title("Back to the older version")
    there = guest(bare)
    copies = bare.run(f"ls {STATE}/*.db.backup-* 2>/dev/null || true").split()
    install(bare, "/root/older/plimsoll_*.deb")
    if copies:
        bare.wait("it refuses them", lambda: "was written by a newer version" in bare.log())
        bare.run(f"systemctl stop {UNIT}; mkdir {STATE}/newer", ends=(0, 1))
        for copy in copies:
            name = copy.partition(".backup-")[0]
            bare.run(f"mv {name} {name}-wal {name}-shm {STATE}/newer/; mv {copy} {name}", ends=(0, 1))
        bare.start()
    bare.ready()
    assert claims(bare) == before
    assert guest(bare) == there
    bare.run("plimsoll audit")


def test_a_reshape_can_be_looked_at_before_the_new_version_starts(bare: Node, before: dict[str, Any]) -> None:
    bare.title("The upgrade again, with a look at what it would move before it starts")
    bare.run(f"systemctl mask --runtime --now {UNIT}")
    install(bare, "/root/plimsoll_*.deb")
    assert shown(bare, UNIT, "ActiveState") == ["inactive"]
    bare.run("runuser -u plimsoll -- plimsoll reshape --offline --dry-run", ends=(0, 3))
    bare.run(f"systemctl unmask --runtime {UNIT}")
    bare.start()
    assert claims(bare) == before
    foreign = bare.run(f"find {STATE} /run/plimsoll ! -user plimsoll ! -path '*/newer*'", note=False)
    assert foreign == ""


@pytest.mark.usefixtures("before")
def test_the_units_are_as_systemd_wants_them(bare: Node) -> None:
    """With the drop-in for its version."""
    bare.title("The units")
    names = (
        "plimsoll-agent",
        "plimsoll-reshape",
        "plimsoll-devices",
        "plimsoll-mixed-vgpus",
        "plimsoll-cpus",
    )
    units = " ".join(f"/usr/lib/systemd/system/{name}.service" for name in names)
    assert bare.run(f"systemd-analyze verify --man=no {units} 2>&1") == ""
    assert shown(bare, UNIT, "Type", "User", "WatchdogUSec") == ["notify-reload", "plimsoll", "30s"]
    for unit in names:
        told = bare.run(f"systemd-analyze security {unit} --no-pager | tail -n 1")
        found = re.search(r": ([\d.]+) ", told)
        assert found is not None and float(found.group(1)) <= EXPOSURE_MAX
    paths = ("plimsoll-mixed-vgpus.path", "plimsoll-cpus.path")
    units = " ".join((*names, *paths))
    enabled = bare.run(f"systemctl is-enabled {units}", ends=(0, 1)).split()
    assert enabled == ["enabled", "disabled", "enabled", "static", "enabled", "enabled", "enabled"]
    for path in paths:
        assert shown(bare, path, "ActiveState") == ["active"]


@pytest.mark.usefixtures("before")
def test_its_modules_are_nobody_elses(bare: Node) -> None:
    assert bare.ask("head -1 /usr/bin/plimsoll").strip() == "#!/usr/bin/python3 -I"
    for name in ("agent", "drivers"):
        assert "No module named" in bare.run(f"cd / && python3 -c 'import {name}' 2>&1", ends=1)


@pytest.mark.usefixtures("before")
def test_a_reload_reads_the_settings_or_keeps_the_old_ones(bare: Node) -> None:
    bare.title("The settings are read again")
    process = pid(bare)
    bare.write("/etc/plimsoll/conf.d/more.conf", "[DEFAULT]\nreserved_host_memory_mb = 600")
    bare.run(f"systemctl reload {UNIT}")
    bare.wait("it is read", lambda: reserved_mb(bare) == 600)
    bare.write("/etc/plimsoll/conf.d/more.conf", "[DEFAULT]\nreserved_host_memory_mb = much")
    bare.run(f"systemctl reload {UNIT}", ends=(0, 1))
    bare.ready()
    assert (reserved_mb(bare), pid(bare)) == (600, process)
    bare.run(f"rm /etc/plimsoll/conf.d/more.conf; systemctl reload {UNIT}")


def test_a_reshape_offline_comes_before_the_agent(bare: Node, before: dict[str, Any]) -> None:
    bare.title("plimsoll-reshape.service")
    bare.run(f"systemctl enable plimsoll-reshape && systemctl restart {UNIT}")
    bare.ready()
    result, ended = shown(bare, "plimsoll-reshape", "Result", "ExecMainExitTimestampMonotonic")
    (started,) = shown(bare, UNIT, "ExecMainStartTimestampMonotonic")
    assert result == "success" and 0 < int(ended) <= int(started)
    bare.run("journalctl -u plimsoll-reshape -o cat | tail -n 3")
    bare.run("systemctl disable plimsoll-reshape")
    assert claims(bare) == before


def test_an_agent_that_hangs_is_started_again(bare: Node, before: dict[str, Any]) -> None:
    bare.title("The agent hangs")
    there, process = guest(bare), pid(bare)
    bare.run(f"kill -STOP {process}")
    bare.wait(
        "systemd starts another",
        lambda: shown(bare, UNIT, "MainPID")[0] not in ("0", str(process)),
        WATCHDOG_S + 120,
    )
    bare.ready()
    assert "Watchdog timeout" in bare.run(f"journalctl -u {UNIT} | grep Watchdog")
    assert claims(bare) == before
    assert guest(bare) == there


@pytest.mark.usefixtures("before")
def test_the_package_goes(bare: Node, files_before: set[str]) -> None:
    bare.run("virsh destroy gated; dpkg --purge plimsoll 2>&1 | tail -n 2", note=False)
    bare.gone(STATE, "/etc/plimsoll", "/run/plimsoll")
    assert bare.named_plimsoll() - files_before <= LEFT, "docs/removing.md says what stays"
    bare.run("id plimsoll")
