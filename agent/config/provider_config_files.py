"""Reads the directory of provider config files ([compute] provider_config_location)."""

from pathlib import Path

from agent.errors import SettingsError
from agent.providers.provider_config import (
    ProviderConfig,
    ProviderEntry,
    merge_entries,
    parse_provider_file,
)
from agent.strict_text import FILE_BYTES_MAX

FILES_MAX = 64
SUFFIX = ".yaml"


def load(directory: Path, *, required: bool) -> ProviderConfig:
    """The entries of the directory's *.yaml files, in the order of the file names, as nova reads them.

    Hidden files, which editors leave, are skipped. Without `required`, a missing directory counts as empty.
    Raises SettingsError with file and key.
    """
    try:
        files = sorted(path for path in directory.iterdir() if path.match(f"[!.]*{SUFFIX}"))
    except FileNotFoundError as error:
        if not required:
            return ProviderConfig()
        raise _unreadable(directory, error) from error
    except OSError as error:
        raise _unreadable(directory, error) from error
    if len(files) > FILES_MAX:
        raise SettingsError(
            f"{directory} has {len(files)} provider config files; at most {FILES_MAX} are allowed.",
            file=str(directory),
        )
    entries: list[ProviderEntry] = []
    for path in files:
        entries.extend(parse_provider_file(_content(path), str(path)))
    return merge_entries(entries)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"The provider config file {path} cannot be read: {error.strerror}.", file=str(path)
        ) from error


def _unreadable(directory: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"[compute] provider_config_location = {directory} cannot be read: {error.strerror}; create "
        "it, readable for the agent, or remove the option.",
        file=str(directory),
        group="compute",
        option="provider_config_location",
    )
