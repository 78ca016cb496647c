"""The files of a provider config directory: their order, their number, and what cannot be read."""

from pathlib import Path

import pytest
from kits.paths import CHECKOUT

from agent.config.provider_config_files import FILES_MAX, load
from agent.errors import SettingsError
from agent.providers.provider_config import ProviderConfig

SAMPLE = CHECKOUT / "etc/plimsoll/provider_config/provider.yaml.sample"
HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"


def one(text: str) -> str:
    return f"{HEAD}  - {text}\n"


def test_the_files_of_a_directory_are_read_by_name(tmp_path: Path) -> None:
    assert load(tmp_path / "none", required=False) == ProviderConfig()
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none", required=True)
    with pytest.raises(SettingsError, match="cannot be read"):
        load(SAMPLE, required=False)
    for name in ("b", "a"):
        text = one(f"{{identification: {{name: {name}}}, traits: {{additional: [CUSTOM_T]}}}}")
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "c.yaml.sample").write_text("nonsense: [")
    (tmp_path / ".#a.yaml").symlink_to("somebody@edits-this")
    assert [each.name for each in load(tmp_path, required=True).entries] == ["a", "b"]
    (tmp_path / "d.yaml").mkdir()
    with pytest.raises(SettingsError, match=r"d.yaml cannot be read"):
        load(tmp_path, required=True)
    for number in range(FILES_MAX):
        (tmp_path / f"{number}.yaml").write_text("")
    with pytest.raises(SettingsError, match="are allowed"):
        load(tmp_path, required=True)
