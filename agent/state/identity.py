"""Who this host is: a uuid made once and kept in a file, with the name it goes by beside it.

Placement knows the host by that uuid, so it is never guessed: whatever is unclear is an IdentityError with
the command that resolves it, and nothing is written.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.durable.files import write_atomically
from agent.errors import IdentityError

ID_FILE = "host_id"
NAME_FILE = "host_name"
TEXT_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """The uuid and the name of the host's root provider."""

    uuid: str
    name: str


def establish(
    state_path: Path,
    host: str,
    recorded: str | None,
    provisioned_in: Iterable[Path] = (),
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
) -> Identity:
    """Find the host's uuid, or make it on the very first start.

    `recorded` is the uuid that the agent's own database knows; `provisioned_in` are directories (of the
    configuration files) where somebody may have put a `host_id`. Raises IdentityError.
    """
    copies = _copies((state_path, *provisioned_in))
    found = _agreed(copies)
    if found is None and recorded is not None:
        raise IdentityError(
            f"The host's uuid file {state_path / ID_FILE} is gone, but the agent's records are of the host "
            f"{recorded}; put the file back, or run `plimsoll adopt {recorded}`.",
            uuid=recorded,
        )
    if found is not None and recorded not in (None, found):
        raise IdentityError(
            f"{next(iter(copies))} says that this host is {found}, but the agent's records are of the host "
            f"{recorded}; put {recorded} back into the file, or run `plimsoll adopt {found}` to be it.",
            uuid=found,
            recorded=recorded,
        )
    named = _read(state_path / NAME_FILE)
    if named not in (None, host):
        raise IdentityError(
            f"This host was named {named!r} and is now named {host!r}; set [DEFAULT] host = {named} to keep "
            f"the name, or run `plimsoll adopt {found or 'UUID'}` to give its provider the new one.",
            before=named,
            now=host,
        )
    if found is None:
        found = str(new_uuid())
        _write(state_path / ID_FILE, found)
    if named is None:
        _write(state_path / NAME_FILE, host)
    return Identity(found, host)


def adopt(state_path: Path, host: str, host_uuid: str) -> Identity:
    """Write down that this host, under this name, is that uuid from now on. Raises IdentityError."""
    found = canonical(host_uuid)
    _write(state_path / ID_FILE, found)
    _write(state_path / NAME_FILE, host)
    return Identity(found, host)


def canonical(host_uuid: str) -> str:
    """The uuid in its dashed lower-case form. Raises IdentityError."""
    found = _uuid(host_uuid)
    if found is None:
        raise IdentityError(f"{host_uuid!r} is no uuid, so no host can be adopted by it.")
    return found


def _copies(directories: Iterable[Path]) -> dict[Path, str]:
    """{file: uuid} of the files there are."""
    found: dict[Path, str] = {}
    for directory in directories:
        text = _read(directory / ID_FILE)
        if text is None:
            continue
        host_uuid = _uuid(text)
        if host_uuid is None:
            raise IdentityError(
                f"{directory / ID_FILE} holds {text[:60]!r}, which is no uuid; put the host's uuid there, or "
                "run `plimsoll adopt UUID` with the uuid that placement knows this host by.",
                file=str(directory / ID_FILE),
            )
        found[directory / ID_FILE] = host_uuid
    return found


def _agreed(copies: dict[Path, str]) -> str | None:
    if len(set(copies.values())) > 1:
        said = ", ".join(f"{path} says {host_uuid}" for path, host_uuid in copies.items())
        raise IdentityError(
            f"This host's uuid is in doubt: {said}; remove the wrong file.", copies=len(copies)
        )
    return next(iter(copies.values()), None)


def _uuid(text: str) -> str | None:
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
