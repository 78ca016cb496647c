"""The commands of a page of the guide, run as they stand, on an agent of the test's own.

`<!-- run -->` before a block of a page marks it. In the script, the paths of an installed host are those of
the test (/etc/plimsoll, /var/lib/plimsoll, /run/plimsoll, /backup); `systemctl` starts and stops the test's
agent, `virsh` is that of `kits.shell_libvirt`, `chown` does nothing, and `install` leaves
owners as they are. All else is as an operator types it.
"""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import yaml

from kits.daemon_process import eventually
from kits.paths import CHECKOUT
from kits.shell_libvirt import ShellLibvirt

DOCS = CHECKOUT / "docs"
DEADLINE_S = 100
EMBEDDED = "[placement]\nkind = embedded\n"
_BLOCK = r"<!-- {} -->\n\n((?: *\n| +\S.*\n)+)"


def blocks(page: str, mark: str = "run") -> list[str]:
    """The marked blocks of a page, in their order, without their indentation."""
    text = (DOCS / page).read_text("utf-8")
    return [_dedented(block) for block in re.findall(_BLOCK.format(mark), text)]


def _dedented(block: str) -> str:
    """The block up to its first line that is indented less than its first one."""
    indent = len(block) - len(block.lstrip(" "))
    lines = itertools.takewhile(
        lambda line: not line.strip() or line.startswith(" " * indent), block.splitlines()
    )
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def fenced(page: str, language: str, number: int = 0) -> str:
    """A fenced block of a page."""
    text = (DOCS / page).read_text("utf-8")
    return textwrap.dedent(re.findall(rf" *```{language}\n(.*?)```", text, re.DOTALL)[number])


@contextlib.contextmanager
def served_placement(directory: Path) -> Iterator[str]:
    """A Placement for several hosts, served on loopback: the section of their settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "agent.cli.main", "placement", "serve", "--bind", address]
    log, tokens = directory / "placement.log", directory / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("agents service hosts-of-the-fleet\n")
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*command, "--tokens-file", str(tokens), "--state-dir", str(directory / "placement")],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stderr=stream,
        )
    try:
        eventually(
            "the Placement is served",
            lambda: "Serving Placement" in log.read_text(),
        )
        yield (
            "[placement]\nkind = remote\nauth_type = admin_token\ntoken = hosts-of-the-fleet\n"
            f"endpoint_override = http://{address}\n"
        )
    finally:
        server.kill()
        server.wait()


class Host:
    """An installed host, below a directory: an agent on the fake driver, and what the commands find there."""

    def __init__(
        self, directory: Path, name: str = "node1", placement: str = EMBEDDED, **host: object
    ) -> None:
        """`placement` is the section of the settings, `host` the content of the fake driver's host file."""
        self.directory = directory
        self._pid = directory / "pid"
        for folder in ("etc", "state", "run", "bin", "work"):
            (directory / folder).mkdir()
        (directory / "host.yaml").write_text(yaml.safe_dump(host))
        self.settings = directory / "etc" / "plimsoll.conf"
        self.settings.touch(mode=0o600)
        self.settings.write_text(
            f"[DEFAULT]\ncompute_driver = fake\nhost = {name}\nstate_path = {directory / 'state'}\n"
            f"[api]\nsocket = {self.socket}\n[fake]\nhost_file = {directory / 'host.yaml'}\n"
            f"{placement}"
        )
        self.libvirt = ShellLibvirt(
            directory / "libvirt",
            api_socket=self.socket,
            host_file=directory / "host.yaml",
            programs=directory / "bin",
        )
        command = f"{sys.executable} -m agent.cli.main"
        self.program("plimsoll", f'exec {command} "$@"\n')
        self.program("chown", "exit 0\n")
        self.program(
            "install",
            """
            words=()
            while [ $# -gt 0 ]; do
                case "$1" in -o | -g) shift ;; *) words+=("$1") ;; esac
                shift
            done
            exec /usr/bin/install "${words[@]}"
            """,
        )
        self.program(
            "systemctl",
            f"""
            stop() {{
                kill "$(cat {self._pid})"
                while kill -0 "$(cat {self._pid})" 2>/dev/null; do sleep 0.1; done
            }}
            start() {{
                setsid {command} agent --config-file {self.settings} >>{directory}/log 2>&1 &
                echo $! >{self._pid}
                until plimsoll status >/dev/null 2>&1; do
                    kill -0 $! 2>/dev/null || {{ cat {directory}/log >&2; exit 1; }}
                    sleep 0.1
                done
            }}
            reloads() {{ grep -c "After the reload" {directory}/log; }}
            reload() {{
                before=$(reloads)
                kill -HUP "$(cat {self._pid})"
                for wait in {{1..100}}; do
                    [ "$(reloads)" = "$before" ] || exit 0
                    sleep 0.1
                done
                exit 1
            }}
            case "$1 $2" in
                "start plimsoll-agent") start ;;
                "stop plimsoll-agent") stop ;;
                "reload plimsoll-agent") reload ;;
                *) exit 1 ;;
            esac
            """,
        )

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "plimsoll.sock"

    def __enter__(self) -> "Host":
        self.run("systemctl start plimsoll-agent")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pid = int(self._pid.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def run(self, script: str, *, code: int = 0) -> str:
        """What the script prints. It ends with `code`, and at its first command that fails."""
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{self.placed(script)}"],
            cwd=self.directory / "work",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def placed(self, text: str) -> str:
        """The text with the paths of this host."""
        for installed, here in (
            ("/etc/plimsoll", "etc"),
            ("/var/lib/plimsoll", "state"),
            ("/run/plimsoll", "run"),
            ("/backup", "backup"),
        ):
            text = re.sub(rf"(?<![\w.]){installed}\b", str(self.directory / here), text)
        return text

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands."""
        return {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PLIMSOLL_SOCKET": str(self.socket),
            "PYTHONPATH": f"{self.libvirt.binding}:{CHECKOUT}",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def program(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(f"#!/bin/bash\n{textwrap.dedent(text)}")
        path.chmod(0o755)
