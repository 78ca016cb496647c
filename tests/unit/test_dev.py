"""`./dev try` and `./dev stop`, as far as they go without a libvirtd: what they keep, and what they tell."""

import shutil
import subprocess
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

COMMANDS = "\ncommand=${1:-}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(CHECKOUT / "dev", tmp_path / "dev")
    return tmp_path


def done(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["/bin/sh", str(folder / "dev"), *words], check=True, capture_output=True, text=True, timeout=30
    ).stdout


def test_settings_that_are_there_stay(folder: Path) -> None:
    script = folder / "dev"
    functions, commands, _ = script.read_text().partition(COMMANDS)
    assert commands
    script.write_text(f"{functions}\nwrite_settings\n")
    done(folder)
    settings = folder / ".try" / "plimsoll.conf"
    assert f"state_path = {folder}/.try/state\n" in settings.read_text()
    settings.write_text("[DEFAULT]\ncap = VGPU=4\n")
    done(folder)
    assert settings.read_text() == "[DEFAULT]\ncap = VGPU=4\n"


def test_stop_tells_of_the_libvirtd_that_goes_on(folder: Path) -> None:
    (folder / ".try").mkdir()
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    for was_started in (True, False):
        (folder / ".try" / "agent.pid").write_text(f"{ended.pid}\n")
        if was_started:
            (folder / ".try" / "libvirtd-was-started").touch()
        said = done(folder, "stop")
        assert said.startswith("stopped; what was claimed is kept")
        assert ("libvirtd and virtlogd, which ./dev started, go on" in said) is was_started
