"""The files that options name: provider config files and device profiles, read, and refused as a whole."""

from pathlib import Path

import pytest
from kits.paths import CHECKOUT

from agent.claims.device_profiles import ProfileGroup
from agent.config.files import FILES_MAX, load_device_profiles, load_provider_config
from agent.config.settings import load, reload
from agent.errors import SettingsError
from agent.providers.provider_config import ProviderConfig

SAMPLE = CHECKOUT / "etc/plimsoll/provider_config/provider.yaml.sample"
HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"


def one(text: str) -> str:
    return f"{HEAD}  - {text}\n"


def test_the_files_of_a_directory_are_read_by_name(tmp_path: Path) -> None:
    assert load_provider_config(tmp_path / "none", required=False) == ProviderConfig()
    with pytest.raises(SettingsError, match="cannot be read"):
        load_provider_config(tmp_path / "none", required=True)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_provider_config(SAMPLE, required=False)
    for name in ("b", "a"):
        text = one(f"{{identification: {{name: {name}}}, traits: {{additional: [CUSTOM_T]}}}}")
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "c.yaml.sample").write_text("nonsense: [")
    (tmp_path / ".#a.yaml").symlink_to("somebody@edits-this")
    assert [each.name for each in load_provider_config(tmp_path, required=True).entries] == ["a", "b"]
    (tmp_path / "d.yaml").mkdir()
    with pytest.raises(SettingsError, match=r"d.yaml cannot be read"):
        load_provider_config(tmp_path, required=True)
    for number in range(FILES_MAX):
        (tmp_path / f"{number}.yaml").write_text("")
    with pytest.raises(SettingsError, match="are allowed"):
        load_provider_config(tmp_path, required=True)


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
        load_device_profiles(tmp_path / "none")
    file.write_text("[claims]\ndevice_profiles = profiles.yaml\n")
    with pytest.raises(SettingsError, match="must be an absolute path"):
        load([file])
