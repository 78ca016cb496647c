"""What the integration tests start: a libvirtd of their own, and the system's where it does not run."""

import os
import subprocess
from collections.abc import Iterator

import libvirt
import pytest
from kits.daemon_process import eventually
from kits.libvirt_daemon import MissingPrograms, PrivateLibvirtd, find_programs

SYSTEM_URI = "qemu:///system"


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[PrivateLibvirtd]:
    """A running libvirtd that a test may kill; whoever does, starts it again."""
    try:
        daemon = PrivateLibvirtd()
    except MissingPrograms as error:
        pytest.fail(f"these tests need a libvirtd: {error}")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="session")
def system_libvirtd() -> Iterator[str]:
    """The URI of the system's libvirtd; started if it does not run, and then stopped at the end."""
    if _answers():
        yield SYSTEM_URI
        return
    if os.geteuid() != 0:
        pytest.fail(f"nothing answers at {SYSTEM_URI}: start libvirtd, or run the tests as root")
    try:
        programs = find_programs("virtlogd", "libvirtd", "qemu-system-x86_64")
    except MissingPrograms as error:
        pytest.fail(f"nothing answers at {SYSTEM_URI}: {error}")
    logger = subprocess.Popen([programs["virtlogd"]], stderr=subprocess.DEVNULL)
    daemon = subprocess.Popen([programs["libvirtd"]], stderr=subprocess.DEVNULL)
    try:
        eventually(f"{SYSTEM_URI} answers", _answers)
        yield SYSTEM_URI
    finally:
        for process in (daemon, logger):
            process.terminate()
            process.wait(30)


def _answers() -> bool:
    try:
        libvirt.openReadOnly(SYSTEM_URI).close()
    except libvirt.libvirtError:
        return False
    return True
