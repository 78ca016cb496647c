"""Each option name that keystoneauth registers is one of [placement], a former name of one, or refused."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from keystoneauth1 import loading

from agent.config.keystone_names import REFUSED_NAMES
from agent.config.options import AGENT_OPTIONS, names_of
from agent.config.settings import load
from agent.errors import SettingsError

HEAD = "[DEFAULT]\ncompute_driver = fake\n[placement]\n"
PASSWORD = "kind = remote\nauth_url = http://keystone/v3\npassword = x\n"


def registered() -> set[str]:
    options = [
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(),
        *loading.get_auth_common_conf_options(),
    ]
    # keystoneauth hides a plug-in whose own dependency, such as oauthlib, is not installed.
    for plugin in entry_points(group="keystoneauth1.plugin"):
        options += loading.get_auth_plugin_conf_options(plugin.load()())
    return {name for option in options for name in names_of(option)}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plimsoll.conf"
    path.touch(mode=0o600)
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def test_each_name_that_keystoneauth_registers_is_known() -> None:
    """A new keystoneauth shows here what is missing, and what it no longer has."""
    own = {name for option in AGENT_OPTIONS["placement"] for name in names_of(option)}
    refused = REFUSED_NAMES.keys()
    assert registered() <= own | refused
    assert not own & refused
    assert refused <= registered()


@pytest.mark.parametrize("name", sorted(REFUSED_NAMES))
def test_a_name_without_use_here_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load([written(tmp_path, f"{name} = 1\n")])
    assert f"[placement] {name} is of no use here: {REFUSED_NAMES[name]}" in caught.value.message
    assert caught.value.details["option"] == name


def test_former_names_are_taken_as_keystoneauth_takes_them(tmp_path: Path) -> None:
    file = written(tmp_path, PASSWORD + "user_name = u\ntenant_name = t\nauth_plugin = v3password\n")
    settings = load([file])
    placement = settings.placement
    assert (placement.username, placement.project_name, placement.auth_type) == ("u", "t", "v3password")
    assert settings.table["placement"]["username"].origin == str(file)
    assert load([written(tmp_path, PASSWORD + "username = u\ntenant_id = t\n")]).placement.project_id == "t"


def test_an_option_under_both_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="username is given 2 times"):
        load([written(tmp_path, PASSWORD + "username = u\nuser_name = v\n")])


def test_a_bad_value_under_a_former_name_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"retriable_status_codes = 503,many is not allowed"):
        load([written(tmp_path, PASSWORD + "username = u\nretriable_status_codes = 503,many\n")])
    with pytest.raises(SettingsError, match=r"tls_min_version = 1.1 is not allowed.*one of 1.2, 1.3"):
        load([written(tmp_path, PASSWORD + "username = u\ntls_min_version = 1.1\n")])
