"""What is plugged into guests of a real libvirtd becomes a finding, or the claim's, by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import libvirt
import pytest
from kits.daemon_process import Daemon, eventually
from kits.libvirt_daemon import PrivateLibvirtd

pytestmark = [pytest.mark.libvirtd, pytest.mark.slow]
VM = "a1000000-0000-4000-8000-000000000001"
PLUGGABLE = f"""<domain type='qemu'><name>pluggable</name><uuid>{VM}</uuid>
<maxMemory slots='2' unit='MiB'>512</maxMemory><memory unit='MiB'>64</memory><vcpu current='1'>4</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
<cpu><numa><cell id='0' cpus='0-3' memory='64' unit='MiB'/></numa></cpu></domain>"""
DIMM = "<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>"
IN_TIME_S = 2.0
BUSY_S = 8.0
"""On a busy machine a single one may be late."""


@pytest.fixture
def domain(libvirtd: PrivateLibvirtd) -> Iterator[Any]:
    with closing(libvirt.open(libvirtd.uri)) as writer:
        domain = writer.createXML(PLUGGABLE)
        yield domain
        domain.destroy()


def agent(folder: Path, libvirtd: PrivateLibvirtd, follow: str) -> Daemon:
    return Daemon(
        folder,
        {
            "DEFAULT": {"compute_driver": "libvirt", "host": "node1", "reserved_host_memory_mb": 0},
            "libvirt": {"connection_uri": libvirtd.uri, "images_path": libvirtd.images},
            "placement": {"kind": "embedded"},
            "claims": {"follow": follow},
        },
    )


def seconds(plug: Callable[[], object], what: str, holds: Callable[[], bool]) -> float:
    """How long it takes until that holds, from when libvirt had plugged it."""
    plug()
    began = time.monotonic()
    eventually(what, holds)
    return time.monotonic() - began


def in_time(*took: float) -> None:
    assert min(took) < IN_TIME_S and max(took) < BUSY_S, took


def test_what_is_plugged_is_a_finding_in_time(tmp_path: Path, libvirtd: PrivateLibvirtd, domain: Any) -> None:
    with closing(agent(tmp_path, libvirtd, "report")) as daemon:
        daemon.start()
        daemon.claim({"VCPU": 1, "MEMORY_MB": 64}, VM)

        def found(*words: str) -> bool:
            lines = daemon.lines("uses more")
            return bool(lines) and all(word in lines[-1] for word in words)

        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        in_time(seconds(lambda: domain.setVcpusFlags(2, live), "vCPUs", lambda: found("VCPU")))
        assert daemon.claims()[VM]["state"] == "claimed"
        assert daemon.used() == {"VCPU": 1, "MEMORY_MB": 64}


def test_what_is_plugged_is_claimed_in_time(tmp_path: Path, libvirtd: PrivateLibvirtd, domain: Any) -> None:
    with closing(agent(tmp_path, libvirtd, "grow")) as daemon:
        daemon.start()
        daemon.claim({"VCPU": 1, "MEMORY_MB": 64}, VM)
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE
        cpus = seconds(
            lambda: domain.setVcpusFlags(2, live),
            "vCPUs",
            lambda: daemon.used() == {"VCPU": 2, "MEMORY_MB": 64},
        )
        memory = seconds(
            lambda: domain.attachDeviceFlags(DIMM, live),
            "memory",
            lambda: daemon.used() == {"VCPU": 2, "MEMORY_MB": 192},
        )
        in_time(cpus, memory)
        # The first scheduled audit may read between a plug and its claim; no plug is a finding by itself.
        assert len(daemon.lines("uses more")) <= 1
        assert daemon.client.get("/v1/audit")["findings"] == []
        assert not daemon.lines("does not follow its guest")
