"""A libvirtd for tests, without systemd and root, and apart from the system's libvirtd.

It is a user's libvirtd (qemu:///session) in its own directory, so tests may kill and suspend it. Tests that
run as root start it as the user nobody, because root's libvirtd is always the one of the system.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import libvirt

from kits.daemon_process import eventually

START_TIMEOUT_S = 30.0
_FOLDERS = ("run", "config", "cache", "data", "images")


class MissingPrograms(Exception):
    """The programs that a libvirtd needs are not installed."""


def find_programs(*names: str) -> dict[str, str]:
    """{name: path} of programs. Raises MissingPrograms, which names the packages to install."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    paths = {name: shutil.which(name, path=path) for name in names}
    missing = sorted(name for name, program in paths.items() if program is None)
    if missing:
        raise MissingPrograms(
            f"{', '.join(missing)} not found: apt-get install libvirt-daemon libvirt-daemon-system "
            "qemu-system-x86"
        )
    return {name: program for name, program in paths.items() if program is not None}


class PrivateLibvirtd:
    """A libvirtd that tests start, kill and stop; its `directory` outlives a restart."""

    def __init__(self) -> None:
        self._programs = find_programs("libvirtd", "virtlogd", "qemu-system-x86_64")
        self.directory = Path(
            tempfile.mkdtemp(prefix="plimsoll-", dir="/tmp")
        )  # a socket's path must be short
        self.images = self.directory / "images"
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        for name in _FOLDERS:
            self._give(self.directory / name, is_folder=True)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (self.directory / "libvirtd.log").open("ab")

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "libvirt" / "libvirt-sock"

    @property
    def uri(self) -> str:
        return f"qemu+unix:///session?socket={self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        as_user = {} if self._user is None else {
            "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []
        }  # fmt: skip
        places = {
            f"XDG_{name.upper()}_HOME": str(self.directory / name) for name in ("config", "cache", "data")
        }
        self._process = subprocess.Popen(
            [self._programs["libvirtd"], "--timeout", "600"],
            cwd=self.directory,
            env={
                **places,
                "XDG_RUNTIME_DIR": str(self.directory / "run"),
                "HOME": str(self.directory),
                "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin",
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **as_user,  # type: ignore[arg-type]
        )
        eventually(f"{self.uri} answers; its log is {self._log.name}", self._answers)

    def _answers(self) -> bool:
        try:
            libvirt.openReadOnly(self.uri).close()
        except libvirt.libvirtError:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to libvirtd."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill libvirtd, as a crash would; guests keep running."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Destroy all guests, end libvirtd and remove its directory."""
        if self._process is not None and self._process.poll() is None:
            with (
                contextlib.suppress(libvirt.libvirtError),
                contextlib.closing(libvirt.open(self.uri)) as writer,
            ):
                for domain in writer.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                    domain.destroy()
        self._end(signal.SIGTERM)
        with contextlib.suppress(OSError, ValueError):  # virtlogd may have ended after its last client
            os.kill(int((self.directory / "run/libvirt/virtlogd.pid").read_text()), signal.SIGTERM)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(START_TIMEOUT_S)
        self._process = None

    def qemu(self, domain: str) -> int:
        """The id of the QEMU process of a running domain."""
        return int((self.directory / f"run/libvirt/qemu/run/{domain}.pid").read_text())

    def image(self, name: str, size_gib: int) -> Path:
        """A sparse raw image of that size."""
        path = self.images / name
        with path.open("wb") as file:
            file.truncate(size_gib * 2**30)
        return self._give(path)

    def _give(self, path: Path, *, is_folder: bool = False) -> Path:
        if is_folder:
            path.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        return path


def small_domain(name: str, uuid: str, *, memory_mb: int = 32, vcpus: int = 1, devices: str = "") -> str:
    """The XML of a domain without an operating system, which runs without KVM."""
    return (
        f"<domain type='qemu'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<vcpu>{vcpus}</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os>"
        f"<features><acpi/></features><devices>{devices}<memballoon model='none'/></devices></domain>"
    )


def file_disk(path: Path, target: str = "vda") -> str:
    """The XML of a disk that is a raw file."""
    return (
        f"<disk type='file'><driver name='qemu' type='raw'/><source file='{path}'/>"
        f"<target dev='{target}' bus='virtio'/></disk>"
    )
