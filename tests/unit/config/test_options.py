"""An operator who copies options of nova or keystoneauth finds each taken, or refused with the reason."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from keystoneauth1 import loading

from agent.config.options import (
    AGENT_OPTIONS,
    NOVA_NAMES,
    REFUSED_NAMES,
    all_options,
    driver_classes,
    names_of,
    why_refused,
)
from agent.config.settings import load
from agent.errors import SettingsError

NAMED = [(group, name) for group, names in NOVA_NAMES.items() for name in names if name != "*"]


def refusal(tmp_path: Path, group: str, text: str) -> SettingsError:
    path = tmp_path / "plimsoll.conf"
    path.touch(mode=0o600)
    path.write_text(f"[DEFAULT]\ncompute_driver = fake\n[{group}]\n{text}\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load([path])
    return caught.value


@pytest.mark.parametrize(
    ("group", "name"), [*NAMED, ("neutron", "physnets"), ("neutron_physnet_a", "numa_nodes")]
)
def test_an_option_of_nova_without_use_here_is_refused_with_the_reason(
    tmp_path: Path, group: str, name: str
) -> None:
    error = refusal(tmp_path, group, f"{name} = 1")
    assert f"[{group}] {name} is of no use here: {why_refused(group, name)}" in error.message
    assert error.details["option"] == name


def test_no_option_of_the_agent_is_refused() -> None:
    for group, options in all_options(driver_classes()[0]).items():
        assert not [option.dest for option in options if why_refused(group, option.dest)]


def test_an_option_that_another_group_has_is_named_with_it(tmp_path: Path) -> None:
    """nova has the power of CPUs in [libvirt]."""
    error = refusal(tmp_path, "libvirt", "cpu_power_management = true")
    assert "has no option 'cpu_power_management'; it belongs to [compute]" in error.message


def test_what_is_not_novas_has_no_reason(tmp_path: Path) -> None:
    assert why_refused("compute", "magic") is why_refused("magic", "x") is None
    assert "there is no group [magic]" in refusal(tmp_path, "magic", "x = 1").message


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
    options = settings.placement.options
    assert (options["username"], options["project_name"], options["auth_type"]) == ("u", "t", "v3password")
    assert settings.table["placement"]["username"].origin == str(file)
    by_id = load([written(tmp_path, PASSWORD + "username = u\ntenant_id = t\n")])
    assert by_id.placement.options["project_id"] == "t"


def test_an_option_under_both_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="username is given 2 times"):
        load([written(tmp_path, PASSWORD + "username = u\nuser_name = v\n")])


def test_a_bad_value_under_a_former_name_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"retriable_status_codes = 503,many is not allowed"):
        load([written(tmp_path, PASSWORD + "username = u\nretriable_status_codes = 503,many\n")])
    with pytest.raises(SettingsError, match=r"tls_min_version = 1.1 is not allowed.*one of 1.2, 1.3"):
        load([written(tmp_path, PASSWORD + "username = u\ntls_min_version = 1.1\n")])
