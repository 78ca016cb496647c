"""An operator who copies options from nova.conf finds each taken, or refused with the reason."""

from pathlib import Path

import pytest

from agent.config.nova_names import NOVA_NAMES, why_not_of_nova
from agent.config.options import all_options, driver_classes
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
    assert f"[{group}] {name} is of no use here: {why_not_of_nova(group, name)}" in error.message
    assert error.details["option"] == name


def test_no_option_of_the_agent_is_refused() -> None:
    for group, options in all_options(driver_classes()[0]).items():
        assert not [option.dest for option in options if why_not_of_nova(group, option.dest)]


def test_an_option_that_another_group_has_is_named_with_it(tmp_path: Path) -> None:
    """nova has the power of CPUs in [libvirt]."""
    error = refusal(tmp_path, "libvirt", "cpu_power_management = true")
    assert "has no option 'cpu_power_management'; it belongs to [compute]" in error.message


def test_what_is_not_novas_has_no_reason(tmp_path: Path) -> None:
    assert why_not_of_nova("compute", "magic") is why_not_of_nova("magic", "x") is None
    assert "there is no group [magic]" in refusal(tmp_path, "magic", "x = 1").message
