"""The file of device profiles: read with the settings, again at a reload, and refused as a whole."""

from pathlib import Path

import pytest

from agent.claims.device_profiles import ProfileGroup
from agent.config import device_profile_file
from agent.config.settings import load, reload
from agent.errors import SettingsError

ONE = "- {name: a, groups: [{'resources:FPGA': 1}]}\n"


def test_the_settings_have_the_profiles_and_a_reload_those_of_the_file_now(tmp_path: Path) -> None:
    profiles, file = tmp_path / "profiles.yaml", tmp_path / "plimsoll.conf"
    profiles.write_text(ONE)
    file.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n[claims]\ndevice_profiles = {profiles}\n")
    running = load([file])
    assert running.device_profiles == {"a": (ProfileGroup({"FPGA": 1}),)}
    assert "the device profiles" not in reload(running, [file]).changed
    profiles.write_text(ONE.replace("1}", "2}"))
    again = reload(running, [file])
    assert again.changed == ("the device profiles",)
    assert again.settings.device_profiles == {"a": (ProfileGroup({"FPGA": 2}),)}
    profiles.write_text("[")
    with pytest.raises(SettingsError, match="not valid YAML"):
        reload(again.settings, [file])


def test_without_the_option_there_are_none_and_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n")
    assert load([file]).device_profiles == {}
    with pytest.raises(SettingsError, match=r"device_profiles = .*/none cannot be read: No such file"):
        device_profile_file.load(tmp_path / "none")
    file.write_text("[claims]\ndevice_profiles = profiles.yaml\n")
    with pytest.raises(SettingsError, match="must be an absolute path"):
        load([file])
