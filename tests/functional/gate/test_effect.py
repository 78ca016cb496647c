"""`plimsoll gate status` and the running agent: is the gate in effect, and what to do if not; `install`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kits.agent import World, opened, told
from kits.api_client import NOBODY, ROOT_NEEDED, is_root, public_directory, serving
from kits.cli_process import one_line, plimsoll, python
from kits.placements import usual_placement
from kits.status import fetch, listening

from agent.errors import ExitCode, StateError, UsageError
from agent.gate import effect, install
from agent.gate.effect import GatePaths

HOOK_TIME, BEFORE, AFTER = 1_790_000_000, 1_789_999_000, 1_790_001_000
OUTDATED = "#!/bin/sh\n# plimsoll gate enable, long ago\n"


@dataclass
class Node:
    """A host with an agent, libvirt's folder of hooks, and a libvirtd."""

    directory: Path
    world: World
    served: bool = True

    @property
    def paths(self) -> GatePaths:
        return GatePaths(self.directory / "hook", self.directory / "gate.conf", self.directory)

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    def install_hook(self) -> None:
        self.paths.hook.write_text(install.hook_script())
        self.paths.hook.chmod(0o755)
        os.utime(self.paths.hook, (HOOK_TIME, HOOK_TIME))

    def start_libvirtd(self, at: float, pid: int | None = None) -> None:
        file = self.directory / "libvirtd.pid"
        file.write_text(f"{pid or os.getpid()}\n")
        os.utime(file, (at, at))

    def configure(self, unanswered: str) -> None:
        self.paths.config.write_text(f"socket = {self.socket}\nunanswered = {unanswered}\ndeadline = 2\n")

    def gate_status(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.plimsoll("gate", "status", *words)

    def plimsoll(self, *words: str, uid: int = os.getuid()) -> subprocess.CompletedProcess[str]:
        """The command on this host, with its hook, settings and libvirtd.

        For another user it runs twice: the first run loads the code, which only root may be able to read.
        """
        become = f"import os; main.main({list(words)!r}); os.setresuid({uid}, {uid}, {uid})\n"
        script = (
            "import sys\nfrom pathlib import Path\nfrom agent.cli import gate, main\n"
            "from agent.gate import effect\n"
            f"gate.install.HOOK, gate.install.CONFIG = Path({str(self.paths.hook)!r}), "
            f"Path({str(self.paths.config)!r})\neffect.RUN = Path({str(self.directory)!r})\n"
            f"{become if uid != os.getuid() else ''}"
            f"sys.exit(main.main({list(words)!r}))"
        )
        return python(script, self.socket)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    settings = told(tmp_path, usual_placement(tmp_path), f"[api]\nsocket = {tmp_path / 's'}\n")
    world = opened(settings, gate_paths=GatePaths(tmp_path / "hook", tmp_path / "gate.conf", tmp_path))
    made = Node(tmp_path, world)
    made.configure("allow")
    with world:
        world.agent.reconcile("the start")
        yield made


@pytest.fixture
def gated(node: Node) -> Node:
    """Its libvirtd has started with the hook."""
    node.install_hook()
    node.start_libvirtd(AFTER)
    return node


def test_it_is_in_effect_once_libvirtd_has_started_with_the_hook(gated: Node) -> None:
    with serving(gated.world.operations, gated.socket):
        done = gated.gate_status()
        assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
        assert done.stdout.startswith("gate        in effect\n")
        assert "\ngate       in effect\n" in plimsoll(gated.socket, "status").stdout
    assert b"plimsoll_gate_in_effect 1.0" in gated.world.agent.host_status.metrics()


def test_right_after_gate_enable_it_is_not_in_effect(node: Node) -> None:
    node.install_hook()
    node.start_libvirtd(BEFORE)
    with serving(node.world.operations, node.socket):
        done = node.gate_status()
        assert done.returncode == ExitCode.DRIFT_FOUND
        assert done.stdout.startswith("gate        NOT IN EFFECT\n")
        assert "systemctl restart libvirtd (guests keep running)" in done.stdout
        status = plimsoll(node.socket, "status").stdout
        assert "\ngate       NOT IN EFFECT\n" in status
        assert "systemctl restart libvirtd" in status
    assert b"plimsoll_gate_in_effect 0.0" in node.world.agent.host_status.metrics()
    with listening(node.world.agent.host_status) as url:
        page = fetch(url + "/")[2]
    assert b"NOT IN EFFECT" in page and b"systemctl restart libvirtd" in page


def test_with_the_agent_dead_and_fail_open_it_is_not_in_effect(gated: Node) -> None:
    done = gated.gate_status("-o", "json")
    assert done.returncode == ExitCode.DRIFT_FOUND
    answer = json.loads(done.stdout)
    assert answer["in_effect"] is False
    (reason,) = answer["reasons"]
    assert "unanswered = allow" in reason and "claim-running" in reason


def test_with_the_agent_dead_and_fail_closed_no_guest_starts(gated: Node) -> None:
    gated.configure("refuse")
    done = gated.gate_status()
    assert done.returncode == ExitCode.DRIFT_FOUND
    assert done.stdout.startswith("gate        in effect\n")
    assert "unanswered = refuse: no guest without a claim starts" in done.stdout


def test_status_with_the_agent_dead_tells_what_becomes_of_the_gate(gated: Node) -> None:
    """In the error of the one command, with the exit code of an agent that does not answer."""
    dead = gated.plimsoll("status")
    assert dead.returncode == ExitCode.UNREACHABLE
    line = one_line(dead)
    assert "no agent listens" in line and "systemctl status plimsoll-agent" in line
    assert (
        "The gate is NOT IN EFFECT: " in line and "unanswered = allow: guests start without a claim" in line
    )
    assert "run `plimsoll gate claim-running`" in line
    error = json.loads(gated.plimsoll("status", "-o", "json").stderr)["error"]
    assert error["details"]["gate"]["in_effect"] is False and error["details"]["gate"]["reasons"]
    gated.configure("refuse")
    line = one_line(gated.plimsoll("status"))
    assert "The gate is in effect: " in line and "no guest without a claim starts" in line
    gated.paths.hook.unlink()
    assert "gate" not in one_line(gated.plimsoll("status"))


def test_status_at_a_wrong_socket_says_nothing_of_a_gate_that_is_in_effect(gated: Node) -> None:
    with serving(gated.world.operations, gated.socket):
        wrong = gated.plimsoll("status", "--socket", str(gated.directory / "none"))
    assert wrong.returncode == ExitCode.UNREACHABLE and "gate" not in one_line(wrong)


def test_status_that_waits_shorter_than_the_hook_does_not_judge_the_gate_by_that(
    gated: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = gated.world.agent.host_status.status()

    def slow() -> object:
        time.sleep(0.6)
        return answer

    monkeypatch.setattr(gated.world.agent.host_status, "status", slow)
    with serving(gated.world.operations, gated.socket):
        impatient = gated.plimsoll("status", "--timeout", "0.2")
    assert impatient.returncode == ExitCode.UNREACHABLE
    line = one_line(impatient)
    assert "did not answer within 0.2 s" in line and "gate" not in line


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
def test_a_user_who_may_not_open_the_socket_is_told_that_and_nothing_of_the_gate(gated: Node) -> None:
    with public_directory() as directory:
        public = Node(directory, gated.world)
        public.configure("allow")
        public.install_hook()
        with serving(gated.world.operations, public.socket):
            public.socket.chmod(0o600)
            for words in (("status",), ("gate", "status")):
                denied = public.plimsoll(*words, uid=NOBODY)
                assert denied.returncode == ExitCode.UNREACHABLE
                assert "this user may not open" in denied.stderr and "NOT IN EFFECT" not in denied.stderr


def test_while_claims_are_closed_it_is_not_in_effect(gated: Node) -> None:
    gated.world.driver.fail(1)
    gated.world.agent.reconcile("an event")
    with serving(gated.world.operations, gated.socket):
        done = gated.gate_status()
    assert done.returncode == ExitCode.DRIFT_FOUND
    assert "does not answer" in done.stdout
    assert gated.world.agent.host_status.status().gate.in_effect is False


def test_a_paused_host_refuses_guests_and_the_gate_is_in_effect(gated: Node) -> None:
    with serving(gated.world.operations, gated.socket):
        assert plimsoll(gated.socket, "pause", "--reason", "new memory").returncode == ExitCode.DONE
        assert gated.gate_status().returncode == ExitCode.DONE
        domain = (
            "<domain type='qemu'><name>web1</name><uuid>5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69</uuid>"
            "<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>"
        )
        config = str(gated.paths.config)
        call = f"import sys; from agent.gate.hook import main; sys.exit(main(sys.argv, {config!r}))"
        hook = subprocess.run(
            [sys.executable, "-c", call, "web1", "prepare", "begin", "-"],
            input=domain.encode(),
            capture_output=True,
            check=False,
            timeout=30,
        )
    assert hook.returncode == 1
    assert b"new memory" in hook.stderr


def test_a_libvirtd_that_does_not_run_will_find_the_hook(node: Node) -> None:
    node.install_hook()
    node.start_libvirtd(BEFORE, pid=2**22 + 1)
    with serving(node.world.operations, node.socket):
        assert node.gate_status().returncode == ExitCode.DONE


def test_a_gate_that_is_disabled_is_no_fault(node: Node) -> None:
    with serving(node.world.operations, node.socket):
        done = node.gate_status()
        assert (done.returncode, done.stdout.splitlines()[0][:20]) == (ExitCode.DONE, "gate        disabled")
        assert "\ngate       disabled\n" in plimsoll(node.socket, "status").stdout
    assert b"\nplimsoll_gate_in_effect " not in node.world.agent.host_status.metrics()


def test_settings_of_the_hook_that_name_another_socket_are_told(gated: Node) -> None:
    gated.paths.config.write_text("socket = /run/elsewhere\n")
    (reason,) = gated.world.agent.host_status.status().reasons
    assert "/run/elsewhere" in reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enable the gate")
@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_enabling_it_once_more_keeps_it_in_effect(tmp_path: Path, mode: int) -> None:
    """A script that could not be executed was not: libvirtd has yet to find it."""
    hook = tmp_path / "hook"
    hook.write_text(OUTDATED)
    hook.chmod(mode)
    os.utime(hook, (HOOK_TIME, HOOK_TIME))
    install.enable(hook)
    since = hook.stat().st_mtime
    assert (since == HOOK_TIME) is (mode == 0o755)
    install.enable(hook)
    assert hook.stat().st_mtime == since


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enable the gate")
@pytest.mark.parametrize("daemon_time", [BEFORE, AFTER])
def test_a_daemon_that_ran_before_the_hook_does_not_run_it_whatever_the_clock_was_set_to(
    node: Node, daemon_time: float
) -> None:
    """The clock was set back between the start of libvirtd and that of the gate, or forward."""
    with subprocess.Popen(["sleep", "60"]) as old, subprocess.Popen(["sleep", "60"]) as new:
        try:
            node.start_libvirtd(daemon_time, old.pid)
            effect.enable(node.paths)
            assert (node.paths.run / effect.BEFORE_HOOK).stat().st_mode & 0o777 == 0o644, "each user may ask"
            os.utime(node.paths.hook, (HOOK_TIME, HOOK_TIME))
            assert effect.read_effect(node.paths, None).in_effect is False
            effect.enable(node.paths)  # once more, as an upgrade does
            assert effect.read_effect(node.paths, None).in_effect is False
            node.start_libvirtd(daemon_time, new.pid)
            assert effect.read_effect(node.paths, None).in_effect is True
        finally:
            old.kill()
            new.kill()


@pytest.mark.parametrize(
    ("script", "settings", "undecided", "state", "in_effect", "reason"),
    [
        (None, "nonsense", "it is away", "disabled", None, ""),
        ("", "", None, "enabled", True, ""),
        ("", "unanswered = refuse", None, "enabled", True, ""),
        ("", "nonsense", None, "enabled", True, "'nonsense' is not a valid setting"),
        (OUTDATED, "", None, "outdated", False, "is of another version or installation"),
        ("#!/bin/sh\n", "", None, "foreign", False, "is not Plimsoll's: move it away"),
        ("", "", "it is away", "enabled", False, "does not decide (it is away), and"),
        ("", "unanswered = refuse", "it is away", "enabled", True, "no guest without a claim starts"),
        ("", "socket = /elsewhere", None, "enabled", False, "has socket = /elsewhere, and the agent listens"),
    ],
)
def test_each_reason_why_guests_start_without_the_gate_is_told(
    tmp_path: Path,
    script: str | None,
    settings: str,
    undecided: str | None,
    state: str,
    in_effect: bool | None,
    reason: str,
) -> None:
    paths = GatePaths(tmp_path / "hook", tmp_path / "gate.conf", tmp_path)
    paths.config.write_text(f"socket = {tmp_path}/s\n{settings}\n")
    if script is not None:
        paths.hook.write_text(script or install.hook_script())
        paths.hook.chmod(0o755)
    told = effect.read_effect(paths, undecided, tmp_path / "s")
    assert (told.state, told.in_effect) == (state, in_effect)
    assert [reason in each for each in told.reasons] == ([True] if reason else [])
    assert told.unanswered == ("refuse" if "refuse" in settings else "allow")
    assert effect.is_enabled(paths) is (state in ("enabled", "outdated"))
    paths.hook.unlink(missing_ok=True)
    paths.hook.mkdir()
    unknown = effect.read_effect(paths, undecided)
    assert (unknown.state, unknown.in_effect, effect.is_enabled(paths)) == (None, None, False)
    for change in (install.enable, install.disable):
        with pytest.raises(StateError, match="hook cannot be read: Is a directory; run this as root"):
            change(paths.hook)


@pytest.mark.parametrize("daemon", effect.DAEMONS)
@pytest.mark.parametrize(
    ("pid", "at", "before", "runs_it"),
    [
        ("own", BEFORE, None, False),
        ("own", AFTER, None, True),
        ("own", BEFORE, "", True),
        ("own", AFTER, "1 2", True),
        (str(2**22 + 1), BEFORE, None, True),
        (str(2**22 + 1), BEFORE, "", True),
        ("none", BEFORE, None, True),
        (str(2**70), BEFORE, None, True),
    ],
)
def test_a_daemon_that_has_run_since_before_the_hook_does_not_run_it(
    tmp_path: Path, daemon: str, pid: str, at: float, before: str | None, runs_it: bool
) -> None:
    """By what is known of the daemons of that time, else by the files' times."""
    paths = GatePaths(tmp_path / "hook", tmp_path / "gate.conf", tmp_path)
    paths.hook.write_text(install.hook_script())
    paths.hook.chmod(0o755)
    os.utime(paths.hook, (HOOK_TIME, HOOK_TIME))
    (tmp_path / f"{daemon}.pid").write_text(str(os.getpid()) if pid == "own" else pid)
    os.utime(tmp_path / f"{daemon}.pid", (at, at))
    if before is not None:
        (tmp_path / effect.BEFORE_HOOK).write_text(before)
    told = effect.read_effect(paths, None)
    assert told.in_effect is runs_it
    assert runs_it or f"systemctl restart {daemon} " in told.lacking[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enable the gate")
def test_a_hook_that_cannot_be_written_or_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StateError, match="/proc/none/hook cannot be written: No such file or directory; run"):
        install.enable(Path("/proc/none/hook"))
    install.enable(tmp_path / "hook")

    def refused(self: Path, **_: bool) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(StateError, match="hook cannot be removed: Operation not permitted; run this as root"):
        install.disable(tmp_path / "hook")


@pytest.mark.parametrize("part", ["", "agent", "agent/gate", "agent/gate/hook.py"])
def test_code_that_other_users_than_root_may_change_is_refused(tmp_path: Path, part: str) -> None:
    code = tmp_path / "agent" / "gate"
    code.mkdir(parents=True)
    (code / "hook.py").touch()
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "agent", code, code / "hook.py"):
            path.chmod(0o755)
        install.check_only_root_may_write(tmp_path)
        (tmp_path / part).chmod(0o1777)  # where each user may change what is the user's own
        install.check_only_root_may_write(tmp_path)
    for mode in (0o775, 0o757):
        (tmp_path / part).chmod(mode)
        with pytest.raises(UsageError, match="other users than root"):
            install.check_only_root_may_write(tmp_path)
    if os.geteuid() == 0:
        (tmp_path / part).chmod(0o755)
        os.chown(tmp_path / part, 1, 0)
        with pytest.raises(UsageError, match="other users than root"):
            install.check_only_root_may_write(tmp_path)


def test_the_hook_is_written_brought_up_to_date_and_removed(tmp_path: Path) -> None:
    hook = tmp_path / "hooks" / "qemu.d" / "50-plimsoll"
    assert install.hook_state(hook) is install.HookState.DISABLED
    if os.geteuid() != 0:
        with pytest.raises(UsageError, match="other users than root"):
            install.enable(hook)
        return
    install.enable(hook)
    assert install.hook_state(hook) is install.HookState.ENABLED
    assert (hook.stat().st_mode & 0o777) == 0o755
    hook.chmod(0o644)  # libvirt does not run it
    assert install.hook_state(hook) is install.HookState.OUTDATED
    install.enable(hook)
    assert install.hook_state(hook) is install.HookState.ENABLED
    hook.write_text("#!/bin/sh\n# plimsoll gate enable, long ago\n")
    assert install.hook_state(hook) is install.HookState.OUTDATED
    install.enable(hook)
    other = hook.with_name("60-other")
    other.touch()
    install.disable(hook)
    assert other.exists() and not hook.exists()
    other.unlink()
    install.enable(hook)
    install.disable(hook)
    install.disable(hook)
    assert not hook.parent.exists() and hook.parent.parent.exists()
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\n")
    for change in (install.enable, install.disable):
        with pytest.raises(UsageError, match="Plimsoll's"):
            change(hook)


def test_the_hook_runs_in_the_interpreter_that_the_environment_was_made_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """libvirtd's confinement refuses programs of a virtual environment, and python3 may be an older one."""
    other = tmp_path / "usr" / "python3.12"
    other.parent.mkdir()
    other.touch()
    in_environment = tmp_path / "python"
    in_environment.symlink_to(other)
    monkeypatch.setattr(sys, "executable", str(in_environment))
    assert install.hook_script().startswith(f"#!{other} -IS\n")
    monkeypatch.setattr(install, "PYTHON", in_environment)
    assert install.hook_script().startswith(f"#!{in_environment} -IS\n")


@pytest.mark.parametrize("code", [None, b"def (", bytes(100), b"1 / 0"])
def test_a_hook_whose_agent_is_missing_or_damaged_lets_every_guest_pass(
    tmp_path: Path, code: bytes | None
) -> None:
    if code is not None:
        (tmp_path / "code" / "agent" / "gate").mkdir(parents=True)
        (tmp_path / "code" / "agent" / "gate" / "hook.py").write_bytes(code)
    hook = tmp_path / "hook"
    hook.write_text(install.hook_script(code=tmp_path / "code"))
    hook.chmod(0o755)
    for operation in ("prepare", "reconnect"):
        done = subprocess.run([str(hook), "vm", operation, "begin", "-"], input=b"", check=False, timeout=30)
        assert done.returncode == 0
