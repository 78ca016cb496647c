"""The hook's script: written where libvirt finds it, and harmless without the agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import UsageError
from agent.gate import install


def test_code_that_other_users_than_root_may_change_is_refused(tmp_path: Path) -> None:
    code = tmp_path / "agent" / "gate"
    code.mkdir(parents=True)
    (code / "hook.py").touch()
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "agent", code, code / "hook.py"):
            path.chmod(0o755)
        install.check_only_root_may_write(tmp_path)
    (code / "hook.py").chmod(0o666)
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
