"""Device profiles: what Cyborg answers is taken, everything else refused with file and key."""

from __future__ import annotations

import pytest

from agent.claims.device_profiles import ProfileGroup, parse_device_profiles
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest
from agent.errors import SettingsError, UsageError

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
CYBORG = b"""
device_profiles:
  - name: fpga-pair
    uuid: 5518a925-1c2c-49a2-a8bf-0927d9456f3e
    description: ""
    created_at: 2026-01-01 00:00:00+00:00
    updated_at: null
    links: [{href: /v2/device_profiles, rel: self}]
    groups:
      - resources:FPGA: "1"
        trait:CUSTOM_FPGA_INTEL_PAC_ARRIA10: required
        trait:CUSTOM_OLD: forbidden
        accel:bitstream_id: d5ca2f11-3108-4426-a11c-a959987565df
      - resources:CUSTOM_ACCELERATOR: 2
"""
FPGA = ProfileGroup({"FPGA": 1}, frozenset({"CUSTOM_FPGA_INTEL_PAC_ARRIA10"}), frozenset({"CUSTOM_OLD"}))
PROFILES = {"fpga-pair": (FPGA, ProfileGroup({"CUSTOM_ACCELERATOR": 2})), "one": (FPGA,)}


def asked(**specs: str) -> ClaimRequest:
    extra = {key.replace("__", ":"): value for key, value in specs.items()}
    flavor = {"vcpus": 2, "memory_mb": 512, "extra_specs": extra}
    return parse_claim({"consumer": CONSUMER, "flavor": flavor}, PROFILES)


def test_what_cyborg_answers_is_taken() -> None:
    assert parse_device_profiles(CYBORG, "p") == {"fpga-pair": PROFILES["fpga-pair"]}


@pytest.mark.parametrize(
    "text", [b"- {name: a, groups: [{resources:FPGA: 1}]}", b"{name: a, groups: [{'resources:FPGA': '1'}]}"]
)
def test_a_list_and_a_single_profile_are_taken(text: bytes) -> None:
    assert parse_device_profiles(text, "p") == {"a": (ProfileGroup({"FPGA": 1}),)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a", "the top level: expected a list"),
        ("[a]", r"\[0\]: expected a profile"),
        ("[{name: a}]", r"\[0\].groups: expected a list of 1 to 64 groups"),
        ("[{name: a, groups: []}]", r"\[0\].groups: expected a list"),
        ("[{name: '', groups: [{'resources:FPGA': 1}]}]", r"\[0\].name"),
        ("[{name: a, group: []}]", r"\[0\].group: the keys of a profile are name, groups"),
        ("[{name: a, groups: [[]]}]", r"\[0\].groups\[0\]: expected resources:CLASS"),
        ("[{name: a, groups: [{'accel:x': 1}]}]", r"\[0\].groups\[0\]: the group asks for no resources"),
        ("[{name: a, groups: [{'resources:FPGA': 0}]}]", r"resources:FPGA: '0' is not a whole number"),
        ("[{name: a, groups: [{'resources:FPGA': true}]}]", r"'True' is not a whole number"),
        ("[{name: a, groups: [{'resources:fpga': 1}]}]", r"resources:fpga: expected resources:CLASS"),
        ("[{name: a, groups: [{'trait:CUSTOM_A': maybe}]}]", r"trait:CUSTOM_A: 'maybe' is not one of req"),
        ("[{name: a, groups: [{'resources:FPGAS': 1}]}]", r"FPGAS is no standard resource class; .*FPGA\?$"),
        (
            "[{name: a, groups: [{'resources:FPGA': 1, 'trait:HW_CPU_X86_AVX52': forbidden}]}]",
            r"trait:HW_CPU_X86_AVX52: HW_CPU_X86_AVX52 is no standard trait; did you mean",
        ),
        ("[{name: a, groups: [{'resources:FPGA': 1}]}, {name: a, groups: []}]", "there twice"),
        ("[{name: a, name: b}]", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"^p: .*{why}"):
        parse_device_profiles(text.encode(), "p")


def test_a_flavor_gets_the_groups_of_its_profile() -> None:
    request = asked(accel__device_profile="fpga-pair", **{"hw__pci_numa_affinity_policy": "required"})
    own, first, second = request.groups
    assert own.resources == {"VCPU": 2, "MEMORY_MB": 512}
    assert (first.suffix, first.resources) == ("device_profile_0", {"FPGA": 1})
    assert first.required == (frozenset({"CUSTOM_FPGA_INTEL_PAC_ARRIA10"}),)
    assert first.forbidden == {"CUSTOM_OLD"}
    assert (second.suffix, second.resources) == ("device_profile_1", {"CUSTOM_ACCELERATOR": 2})
    assert first.numa_policy == second.numa_policy == "required"
    assert request.group_policy == "none", "nova defaults to it where the groups are not the flavor's"
    assert request.root_required == frozenset()


def test_the_policy_of_the_flavors_own_groups_is_the_flavors() -> None:
    own = {"resources1__VGPU": "1", "resources2__VGPU": "1"}
    assert asked(accel__device_profile="one", group_policy="isolate", **own).group_policy == "isolate"
    assert asked(accel__device_profile="one", resources1__VGPU="1").group_policy == "none"
    with pytest.raises(UsageError, match="group_policy"):
        asked(accel__device_profile="one", **own)


def test_a_profile_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"=gpu: \[claims\] device_profiles has no such.* fpga-pair, one"):
        asked(accel__device_profile="gpu")
    flavor = {"vcpus": 1, "memory_mb": 1, "extra_specs": {"accel:device_profile": "one"}}
    with pytest.raises(UsageError, match=r"names no file of profiles"):
        parse_claim({"consumer": CONSUMER, "flavor": flavor})
