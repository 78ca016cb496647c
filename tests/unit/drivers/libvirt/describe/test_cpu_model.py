"""Which CPU's flags become traits: the host's model, the host itself, or the models that are configured."""

from __future__ import annotations

from typing import Any

import pytest

from agent.errors import SettingsError
from drivers.libvirt.describe.host import CpuModel
from drivers.libvirt.describe.options import LibvirtOptions

HOST, MODEL = "<cpu>host</cpu>", "<cpu>model</cpu>"


@pytest.mark.parametrize(
    ("options", "elements"),
    [
        ({}, (MODEL,)),
        ({"cpu_mode": "host-model"}, (MODEL,)),
        ({"cpu_mode": "host-passthrough"}, (HOST,)),
        (
            {"cpu_mode": "custom", "cpu_models": ["Haswell", "Icelake-Server"]},
            (
                "<cpu><arch>x86_64</arch><model>Haswell</model></cpu>",
                "<cpu><arch>x86_64</arch><model>Icelake-Server</model></cpu>",
            ),
        ),
        ({"cpu_mode": "none"}, ("<cpu><arch>x86_64</arch><model>qemu64</model></cpu>",)),
    ],
)
def test_the_mode_says_whose_flags_count(options: dict[str, Any], elements: tuple[str, ...]) -> None:
    assert LibvirtOptions.of(options).cpu_model.elements("x86_64", HOST, MODEL) == elements


def test_without_a_model_of_the_host_its_own_cpu_counts() -> None:
    assert CpuModel().elements("x86_64", HOST, "") == (HOST,)
    assert CpuModel().elements("x86_64", "", "") == ()
    assert CpuModel("none").elements("s390x", HOST, MODEL) == ()


def test_extra_flags_are_added_and_taken_away() -> None:
    model = LibvirtOptions.of({"cpu_model_extra_flags": ["PCID", "+pdpe1gb", "-mpx"]}).cpu_model
    assert model.flags(frozenset({"avx2", "mpx"})) == {"avx2", "pcid", "pdpe1gb"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cpu_mode": "custom"}, "needs cpu_models"),
        ({"cpu_models": ["Haswell"]}, "needs cpu_mode = custom"),
        ({"cpu_mode": "none", "cpu_model_extra_flags": ["pcid"]}, "another cpu_mode than none"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        LibvirtOptions.of(options)
