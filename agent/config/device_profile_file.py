"""Reads the file of device profiles ([claims] device_profiles)."""

from pathlib import Path

from agent.claims.device_profiles import DeviceProfiles, parse_device_profiles
from agent.errors import SettingsError
from agent.strict_text import FILE_BYTES_MAX


def load(path: Path) -> DeviceProfiles:
    """The profiles of the file. Raises SettingsError where it cannot be read or is invalid."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"[claims] device_profiles = {path} cannot be read: {error.strerror}; create the file, readable "
            "for the agent, or remove the option.",
            file=str(path),
            group="claims",
            option="device_profiles",
        ) from error
    return parse_device_profiles(text, str(path))
