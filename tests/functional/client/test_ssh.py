"""`ssh://HOST`: the system's ssh forwards the agent's socket; with a stand-in for it, and a real sshd."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.client import CLIENTS
from kits.served_agent import served_agent
from kits.served_process import free_port

import plimsoll
from plimsoll.wire import Door, Words

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
STAND_IN = """#!%s
import os, socket, sys, threading
print(*sys.argv[1:], file=open(%r, "a"), flush=True)
host = sys.argv[-1]
if host == "unknown":
    sys.exit("ssh: Could not resolve hostname unknown")
local, _, remote = sys.argv[sys.argv.index("-L") + 1].partition(":")
server = socket.socket(socket.AF_UNIX)
server.bind(local)
server.listen()
def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
while True:
    near, _ = server.accept()
    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(remote)
    except OSError as error:
        print("channel 1: open failed: connect failed: open failed", file=sys.stderr, flush=True)
        near.close()
        continue
    for ends in ((near, far), (far, near)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for ssh writes its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(STAND_IN % (sys.executable, str(tmp_path / "called")))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "called"


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_agent_by_ssh(kind: str, stand_in: Path, tmp_path: Path) -> None:
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        agent: plimsoll.Agent = CLIENTS[kind](f"ssh://admin@hv1:2222{tmp_path}/s")
        claim = agent.claim(name="web1", resources={"VCPU": 1})
        assert agent.show_claim(claim.consumer) == claim
        (called,) = stand_in.read_text().splitlines()
        assert called.startswith("-N -T -o BatchMode=yes") and "-p 2222 -l admin" in called
        assert called.endswith(f":{tmp_path}/s -- hv1")
        near = Path(called.rpartition("-L ")[2].partition(":")[0])
        assert near.is_socket() and near.parent.stat().st_mode & 0o777 == 0o700
        agent.close()
        assert not near.parent.exists()
        assert agent.status().state == "ready", "the next request opens the way again"
        agent.close()


def test_ssh_that_ends_and_a_host_without_an_agent(stand_in: Path, tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable, match="ended with 1: ssh: Could not resolve hostname unknown"):
        plimsoll.Agent("ssh://unknown").claim(resources={"VCPU": 1})
    nothing = f"ssh://hv1{tmp_path}/none"
    refused = pytest.raises(plimsoll.BadAnswer, match="ssh: channel 1: open failed")
    with plimsoll.Agent(nothing, retries=1) as agent, refused:
        agent.status()
    assert stand_in.read_text().count(f":{tmp_path}/none -- hv1") == 1


def test_a_port_and_a_password_that_ssh_does_not_take() -> None:
    with pytest.raises(plimsoll.InvalidRequest, match="names no port"):
        plimsoll.Agent("ssh://root@hv1:99999/x")
    with pytest.raises(plimsoll.InvalidRequest, match="has no password") as caught:
        plimsoll.Agent("ssh://root:secret@hv1")
    assert "secret" not in str(caught.value)


def test_no_ssh_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(plimsoll.Unavailable, match="ssh cannot be started"):
        plimsoll.Agent("ssh://hv1").status()


def test_ssh_that_does_not_connect_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with plimsoll.Agent("ssh://hv1") as agent, pytest.raises(plimsoll.Unavailable, match=r"within 0.3 s"):
        agent.status(timeout=0.3)


@pytest.mark.parametrize(
    "address", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-l@hv1", "ssh:///run/s", "ssh://a b"]
)
def test_what_names_no_host(address: str) -> None:
    with pytest.raises(plimsoll.InvalidRequest, match="names no host"):
        Door(address, Words())


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of an sshd on loopback, which the ssh in PATH knows and is known to."""
    for key in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)]
        subprocess.run(command, check=True)
    port = free_port()
    (tmp_path / "sshd.conf").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n".replace("\\\n", "\n")
    )
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "bin").mkdir()
    real = shutil.which("ssh")
    (tmp_path / "bin" / "ssh").write_text(
        f'#!/bin/sh\nexec {real} -F none -i {tmp_path}/user -o UserKnownHostsFile={tmp_path}/known "$@"\n'
    )
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    Path("/run/sshd").mkdir(exist_ok=True)
    with (tmp_path / "sshd.log").open("w") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(tmp_path / "sshd.conf")], stderr=log)
    try:
        for _ in range(100):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(SSHD is None or os.geteuid() != 0, reason="needs sshd, and root for its sessions")
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_real_sshd(kind: str, sshd: int, tmp_path: Path) -> None:
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        address = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd}{tmp_path}/s"
        agent: plimsoll.Agent = CLIENTS[kind](address, made_by="from afar")
        claim = agent.claim(name="web1", resources={"VCPU": 1})
        assert claim.made_by is not None and claim.made_by.uid == os.getuid()
        agent.release(claim.consumer)
        agent.close()
    agent = CLIENTS[kind](address, retries=1)
    with pytest.raises(plimsoll.BadAnswer, match="open failed"):
        agent.status()
    agent.close()
    (tmp_path / "user.pub").write_text("")
    with pytest.raises(plimsoll.Unavailable, match="Permission denied"):
        CLIENTS[kind](address).status()
