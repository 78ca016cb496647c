"""Two hypervisors on one machine: two system libvirtds with hooks, each in its own mount namespace.

Each has its own /etc/libvirt, /run/libvirt and so on, and its own host uuid, so guests can migrate live from
one to the other. The tests need root: the libvirtd of another user does not call hooks.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from uuid import uuid4

import libvirt

from kits.daemon_process import eventually
from kits.libvirt_daemon import find_programs

START_TIMEOUT_S = 60.0
PLACES = {
    "etc": "/etc/libvirt",
    "run": "/run/libvirt",
    "lib": "/var/lib/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
}
DAEMON_CONFIG = """host_uuid = "{uuid}"
unix_sock_dir = "/run/libvirt"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""
QEMU_CONFIG = """security_driver = "none"
user = "root"
group = "root"
namespaces = [ ]
cgroup_controllers = [ ]
remember_owner = 0
migration_port_min = {port}
migration_port_max = {port_last}
"""
PORTS_EACH = 10


class Hypervisor:
    """A libvirtd with hooks. Install the hook before `start`, because libvirtd looks for hooks at its start.

    `cache` is a directory for QEMU's capabilities, which several hypervisors share: probing takes seconds.
    `own_run`: it has a /run of its own, so that its pid file and the agent's socket have their usual paths.
    """

    def __init__(self, name: str, port: int, cache: Path, *, own_run: bool = False) -> None:
        self._programs = find_programs("libvirtd", "virtlogd", "qemu-system-x86_64", "unshare", "mount")
        self.name = name
        self.port = port
        self.directory = Path(tempfile.mkdtemp(prefix=f"plimsoll-{name}-", dir="/tmp"))
        for place in PLACES.keys() - {"cache"}:
            (self.directory / place).mkdir(mode=0o755)
        (self.directory / "cache").symlink_to(cache)
        self._places = {**PLACES, "run": "/run"} if own_run else PLACES
        self._run = self.directory / "run" / ("libvirt" if own_run else "")
        self._run.mkdir(exist_ok=True)
        self._pid_file = "libvirtd.pid" if own_run else "libvirt/libvirtd.pid"
        self.hooks = self.directory / "etc" / "hooks" / "qemu.d"
        self.hooks.mkdir(parents=True)
        etc = self.directory / "etc"
        (etc / "libvirtd.conf").write_text(DAEMON_CONFIG.format(uuid=uuid4()))
        (etc / "qemu.conf").write_text(QEMU_CONFIG.format(port=port, port_last=port + PORTS_EACH))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = (self.directory / "daemons.log").open("ab")

    @property
    def uri(self) -> str:
        """The libvirt URI of this hypervisor."""
        return f"qemu+unix:///system?socket={self._run}/libvirt-sock"

    def start(self) -> None:
        """Start virtlogd and libvirtd, and wait until libvirtd answers."""
        for path in PLACES.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        logger = f"{self._programs['virtlogd']} -p /run/libvirt/virtlogd.pid"
        daemon = f"{self._programs['libvirtd']} -p /run/{self._pid_file}"
        self._processes.append(
            subprocess.Popen(
                self.inside("sh", "-c", f"{logger} & exec {daemon}"),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        )
        eventually(f"{self.uri} answers; its log is {self._log.name}", self._answers, START_TIMEOUT_S)

    def inside(self, *words: str) -> list[str]:
        """The command that runs these words where this hypervisor's directories are; it stays one process."""
        binds = " && ".join(f"mount --bind {self.directory}/{name} {at}" for name, at in self._places.items())
        shell = ("sh", "-c", f'{binds} && exec "$@"', "sh")
        return [self._programs["unshare"], "--mount", "--propagation", "private", *shell, *words]

    def end(self) -> None:
        """End libvirtd; the guests keep running."""
        pid_file = self.directory / "run" / self._pid_file.removeprefix("libvirt/")
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        self._processes[-1].wait(START_TIMEOUT_S)

    def restart(self) -> None:
        """Restart libvirtd; the guests keep running."""
        self.end()
        self.start()

    def _answers(self) -> bool:
        try:
            libvirt.open(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    def virsh(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a virsh command on this hypervisor."""
        return subprocess.run(
            ["virsh", "-q", "-c", self.uri, *words], capture_output=True, text=True, timeout=120, check=False
        )

    def state(self, name: str) -> str:
        """The state of a domain, "none" if it does not exist."""
        return self.virsh("domstate", name).stdout.strip() or "none"

    def stop(self) -> None:
        """Destroy all guests, end the daemons and remove the directory."""
        with (
            contextlib.suppress(libvirt.libvirtError),
            contextlib.closing(libvirt.open(self.uri)) as connection,
        ):
            for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                domain.destroy()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(START_TIMEOUT_S)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)
