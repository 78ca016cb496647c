"""The host's identity: a uuid that is created once and kept in a file, and the host's name beside it.

Placement knows the host by the uuid, so the agent never guesses it. Where files and records disagree, the
agent raises IdentityError with the command that resolves it, and writes nothing.
"""

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent.durable.files import read_text, write_atomically
from agent.errors import IdentityError, StateError, UsageError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NET = Path("/sys/class/net")
ADDRESS = re.compile(r"(?!00(:00){5})[0-9a-f]{2}(:[0-9a-f]{2}){5}")
ID_FILE = "host_id"
NAME_FILE = "host_name"
TEXT_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """The uuid and the name of the host's root provider."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """What the journal says of the marks: `own` may be on the root, and are this agent's.

    `takes_over`: an operator said that this agent writes for the host, so it replaces all marks. `settled`:
    no other agent has answered to the mark since it was put there. `challenges` is the mark of another agent
    that this one has taken away, to see whether it comes back; `outlived` the last one that did not. `cards`
    are the addresses of the network cards of the machine that this agent wrote from.
    """

    own: tuple[str, ...] = ()
    takes_over: bool = False
    settled: bool = True
    challenges: str = ""
    outlived: str = ""
    cards: tuple[str, ...] = ()


@cache
def this_boot() -> str:
    """The uuid of the boot in which this process runs. Raises OSError."""
    return BOOT_ID.read_text("ascii").strip()


def place_of(state_path: Path) -> str:
    """Where this agent runs: two agents that run at the same time have different places.

    Raises StateError.
    """
    try:
        directory = state_path.stat()
        return f"{this_boot()} {directory.st_dev} {directory.st_ino}"
    except OSError as error:
        raise StateError(
            f"{error.filename} cannot be read: {error.strerror}.", path=str(state_path)
        ) from error


def network_cards(net: Path = NET) -> frozenset[str]:
    """The addresses that the makers gave to the machine's network cards: no two machines have one of them.

    Empty where none can be read. Not those of interfaces that software made, such as bridges and virtual
    functions, nor an address that software gave to a card.
    """
    found = set()
    for interface in net.glob("*"):
        if not (interface / "device").exists() or (interface / "device" / "physfn").exists():
            continue
        # In a bond, a card has the bond's address.
        address = read_text(interface / "bonding_slave" / "perm_hwaddr") or ""
        if not address and read_text(interface / "addr_assign_type") == "0":
            address = read_text(interface / "address") or ""
        if ADDRESS.fullmatch(address):
            found.add(address)
    return frozenset(found)


def establish_identity(
    state_path: Path,
    host: str,
    recorded: str | None,
    provisioned_in: Iterable[Path] = (),
) -> Identity:
    """Find the host's uuid, or create it on the very first start.

    `recorded` is the uuid in the agent's own database. `provisioned_in` are the directories of the
    configuration files, where the operator may have put a `host_id`. Raises IdentityError.
    """
    copies = _read_uuids((state_path, *provisioned_in), recorded)
    if len(set(copies.values())) > 1:
        contents = ", ".join(f"{path} says {known}" for path, known in copies.items())
        raise IdentityError(
            f"The host's uuid files differ: {contents}; remove the wrong file.", copies=len(copies)
        )
    host_uuid = next(iter(copies.values()), None)
    if host_uuid is None and recorded is not None:
        raise IdentityError(
            f"The host's uuid file {state_path / ID_FILE} is gone, but the agent's records are of the host "
            f"{recorded}; put the file back, or run `plimsoll adopt {recorded}`.",
            uuid=recorded,
        )
    if host_uuid is not None and recorded not in (None, host_uuid):
        raise IdentityError(
            f"{next(iter(copies))} says that this host is {host_uuid}, but the agent's records are of the "
            f"host {recorded}; put {recorded} back into the file, or run `plimsoll adopt {host_uuid}` to use "
            "the uuid of the file.",
            uuid=host_uuid,
            recorded=recorded,
        )
    former_name = _read(state_path / NAME_FILE)
    if former_name not in (None, host):
        raise IdentityError(
            f"This host was named {former_name!r} and is now named {host!r}; set [DEFAULT] host = "
            f"{former_name} to keep the name, or run `plimsoll adopt {host_uuid or 'UUID'}` to give its "
            f"provider the new one. If this state directory is a copy of that of {former_name}, which goes "
            f"on: remove {state_path}, and this host gets a uuid of its own.",
            before=former_name,
            now=host,
        )
    if host_uuid is None:
        host_uuid = str(uuid.uuid4())
        _write(state_path / ID_FILE, host_uuid)
    if former_name is None:
        _write(state_path / NAME_FILE, host)
    return Identity(host_uuid, host)


def written_uuid(directories: Iterable[Path]) -> str | None:
    """The host's uuid as its files say it; None where none can be read, or they differ. Writes nothing."""
    try:
        found = set(_read_uuids(directories, None).values())
    except IdentityError:
        return None
    return found.pop() if len(found) == 1 else None


def adopt_identity(state_path: Path, host: str, host_uuid: str) -> Identity:
    """Write that this host has this name and that uuid from now on. Raises IdentityError, UsageError."""
    adopted = canonical_uuid(host_uuid)
    _write(state_path / ID_FILE, adopted)
    _write(state_path / NAME_FILE, host)
    return Identity(adopted, host)


def canonical_uuid(host_uuid: str) -> str:
    """The uuid in its dashed lower-case form. Raises UsageError for a text that is no uuid."""
    canonical = _parse_uuid(host_uuid)
    if canonical is None:
        raise UsageError(f"{host_uuid!r} is not a uuid; give the uuid of the host's root provider.")
    return canonical


def _read_uuids(directories: Iterable[Path], recorded: str | None) -> dict[Path, str]:
    """{file: uuid} of the uuid files that exist; `recorded` is what the agent's records say."""
    copies: dict[Path, str] = {}
    for directory in directories:
        text = _read(directory / ID_FILE)
        if text is None:
            continue
        host_uuid = _parse_uuid(text)
        if host_uuid is None:
            remedy = (
                "write the host's uuid there, or run `plimsoll adopt UUID` with the uuid of the host's "
                "provider in Placement."
                if recorded is None
                else f"the agent's records are of the host {recorded}: write that there, or run `plimsoll "
                f"adopt {recorded}`."
            )
            raise IdentityError(
                f"{directory / ID_FILE} holds {text[:60]!r}, which is not a uuid; {remedy}",
                file=str(directory / ID_FILE),
                recorded=recorded,
            )
        copies[directory / ID_FILE] = host_uuid
    return copies


def _parse_uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TEXT_CHARS_MAX).strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"{path} cannot be read: {error}.", file=str(path)) from error


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, f"{text}\n")
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror}.", file=str(path)) from error
