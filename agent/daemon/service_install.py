"""The files that make a service of an installed wheel: what is to be written, and what of it is there.

The units, their user and their directories are those of the Debian package. All is put where it is the
administrator's: below /etc and /usr/local, which no package manager touches.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.durable import files
from agent.errors import StateError, UsageError

SETTINGS_FILE = "plimsoll.conf"
UNITS = Path("etc/systemd/system")
PACKAGED_UNIT = Path("usr/lib/systemd/system/plimsoll-agent.service")
LINK = Path("usr/local/bin/plimsoll")
SETTINGS = Path("etc/plimsoll")
POLKIT = Path("etc/polkit-1/rules.d")
RULE = POLKIT / "60-plimsoll.rules"
AGENT, RESHAPE = "plimsoll-agent.service", "plimsoll-reshape.service"
DEVICES = "plimsoll-devices.service"
MIXED_VGPUS = "plimsoll-mixed-vgpus.service"
MIXED_VGPUS_PATH = "plimsoll-mixed-vgpus.path"
CC_MODES = "plimsoll-cc-modes.timer"
CPUS, CPUS_PATH = "plimsoll-cpus.service", "plimsoll-cpus.path"
DROP_IN = Path("plimsoll-agent.service.d/50-systemd-254.conf")
DROP_IN_SINCE = 254
MODE = 0o644
UNSEEN = ("home", "root", "tmp", "var/tmp", "run/user")
"""The unit's sandbox hides these directories from the agent (ProtectHome=, PrivateTmp=)."""

_START = re.compile(r"^(ExecStart=)/usr/bin/plimsoll\b", re.MULTILINE)

RULE_TEXT = """// Written by `plimsoll install-service --full-connection`: lets the agent ask libvirt what
// guests can be given, and make mediated devices again. Who may do that controls all guests.
polkit.addRule(function(action, subject) {
    if (action.id == "org.libvirt.unix.manage" && subject.user == "plimsoll") {
        return polkit.Result.YES;
    }
});
"""


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A file to write, with its path below the root. `kept`: one that is there is the operator's."""

    path: Path
    text: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the installed wheel, or the checkout, has the files; `docs` has man/ and completion/."""

    systemd: Path
    etc: Path
    docs: Path

    @classmethod
    def find(cls) -> "Sources":
        """Raises StateError where neither has them, as in the Debian package."""
        packaged = Path(__file__).parent / "files"
        checkout = Path(__file__).parents[2]
        for sources in (
            cls(packaged / "systemd", packaged / "etc", packaged / "docs"),
            cls(checkout / "systemd", checkout / "etc" / "plimsoll", checkout / "build" / "docs"),
        ):
            if (sources.systemd / AGENT).is_file():
                return sources
        raise StateError(
            "This installation has no units to install: a distribution's package brings its own, and a wheel "
            "has them."
        )


def service_files(
    sources: Sources, executable: Path, systemd_version: int, *, full_connection: bool
) -> tuple[ServiceFile, ...]:
    """All files of the service. `executable` is the command that the units start."""

    def started(name: str) -> str:
        return _START.sub(rf"\g<1>{executable}", _read(sources.systemd / name))

    found = [
        ServiceFile(UNITS / AGENT, started(AGENT)),
        ServiceFile(UNITS / RESHAPE, started(RESHAPE)),
        ServiceFile(UNITS / DEVICES, started(DEVICES)),
        ServiceFile(UNITS / MIXED_VGPUS, started(MIXED_VGPUS)),
        ServiceFile(UNITS / MIXED_VGPUS_PATH, _read(sources.systemd / MIXED_VGPUS_PATH)),
        ServiceFile(UNITS / CC_MODES, _read(sources.systemd / CC_MODES)),
        ServiceFile(UNITS / CPUS, started(CPUS)),
        ServiceFile(UNITS / CPUS_PATH, _read(sources.systemd / CPUS_PATH)),
        ServiceFile(
            Path("etc/sysusers.d/plimsoll.conf"), _read(sources.systemd / "sysusers.d/plimsoll.conf")
        ),
        ServiceFile(
            Path("etc/tmpfiles.d/plimsoll.conf"), _read(sources.systemd / "tmpfiles.d/plimsoll.conf")
        ),
        ServiceFile(SETTINGS / "gate.conf", _read(sources.etc / "gate.conf"), kept=True),
        ServiceFile(
            SETTINGS / "provider_config/provider.yaml.sample",
            _read(sources.etc / "provider_config/provider.yaml.sample"),
        ),
        ServiceFile(SETTINGS / f"{SETTINGS_FILE}.sample", _read(sources.etc / SETTINGS_FILE)),
    ]
    if systemd_version >= DROP_IN_SINCE:
        found.append(ServiceFile(UNITS / DROP_IN, _read(sources.systemd / DROP_IN)))
    if full_connection:
        found.append(ServiceFile(RULE, RULE_TEXT))
    completion = sources.docs / "completion" / "plimsoll"
    if completion.is_file():
        found.append(
            ServiceFile(Path("usr/local/share/bash-completion/completions/plimsoll"), _read(completion))
        )
    found.extend(
        ServiceFile(Path("usr/local/share/man") / f"man{page.suffix[1:]}" / page.name, _read(page))
        for page in sorted((sources.docs / "man").glob("*.[1-8]"))
    )
    return tuple(found)


def all_paths(sources: Sources) -> tuple[Path, ...]:
    """The paths that any installation may have written, without what belongs to the operator."""
    every = service_files(sources, Path("/"), DROP_IN_SINCE, full_connection=True)
    return tuple(file.path for file in every if not file.kept)


def to_write(root: Path, wanted: Iterable[ServiceFile]) -> tuple[ServiceFile, ...]:
    """Those that are not there yet, or that say something else. Raises StateError."""
    different = []
    for file in wanted:
        path = root / file.path
        try:
            if path.read_text(encoding="utf-8") != file.text and not file.kept:
                different.append(file)
        except FileNotFoundError:
            different.append(file)
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path} cannot be read: {error}; run this as root.") from error
    return tuple(different)


def to_remove(root: Path, paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those that are there."""
    return tuple(path for path in paths if (root / path).is_file())


def write(root: Path, file: ServiceFile) -> None:
    """Write the file, readable for all. Raises StateError."""
    path = root / file.path
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        files.write_atomically(path, file.text)
        path.chmod(MODE)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}; run this as root.") from error


def remove(root: Path, path: Path) -> None:
    """Remove the file, and its folder if it was Plimsoll's and is empty. Raises StateError."""
    try:
        (root / path).unlink(missing_ok=True)
        if path.parent.name.startswith("plimsoll"):
            folder = root / path.parent
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise StateError(f"{root / path} cannot be removed: {error.strerror}; run this as root.") from error


def check_executable(executable: Path) -> None:
    """Raises UsageError where the agent, in its unit's sandbox, could not start the command."""
    for path in (executable, executable.resolve()):
        hidden = next((name for name in UNSEEN if path.is_relative_to(Path("/") / name)), None)
        if hidden is not None:
            raise UsageError(
                f"The service cannot start {executable}: its sandbox hides /{hidden}. Install the wheel into "
                "a directory of its own, such as /opt/plimsoll: `python3 -m venv /opt/plimsoll && "
                "/opt/plimsoll/bin/pip install 'plimsoll[libvirt]'`."
            )
    if not executable.is_file():
        raise UsageError(
            f"{executable} is no file: run the command that pip installed, such as "
            "/opt/plimsoll/bin/plimsoll install-service."
        )


def check_no_package(root: Path) -> None:
    """Raises UsageError where a distribution's package has its units there."""
    if (root / PACKAGED_UNIT).exists():
        raise UsageError(
            f"{root / PACKAGED_UNIT} is a package's: upgrade the package, or remove it before you "
            "install the service of a wheel."
        )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
