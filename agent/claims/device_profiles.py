"""Device profiles as Cyborg has them, from an operator's file: request groups by the profile's name. Pure.

    - name: fpga-sriov
      groups:
        - resources:FPGA: 1
          trait:CUSTOM_FPGA_INTEL_PAC_ARRIA10: required

A flavor names one by `accel:device_profile`. Other keys of Cyborg's answers (uuid, description, ...), and
those of a group that begin with `accel:`, which Cyborg keeps for the device's driver, change no claim.

Source: https://docs.openstack.org/api-ref/accelerator/#device-profiles; nova 34, nova/accelerator/cyborg.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from agent.claims.near_names import unknown_class, unknown_trait
from agent.errors import SettingsError, UsageError
from agent.strict_text import load_operator_yaml
from agent.tree import MAX_UNIT

SPEC = "accel:device_profile"
PROFILES_MAX = 1024
GROUPS_MAX = 64

_KEYS = ("name", "groups", "uuid", "id", "description", "created_at", "updated_at", "links")
_KEY = re.compile(r"(resources|trait):([A-Z0-9_]{1,255})", re.ASCII)
_NO_CLAIM = "accel:"
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)
_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class ProfileGroup:
    """One group of a profile: {class: amount}, and the traits of the provider that has them."""

    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


DeviceProfiles = Mapping[str, tuple[ProfileGroup, ...]]
"""{name: groups}"""


def group_suffix(number: int) -> str:
    """The suffix of the profile's group with this number, from 0; nova has the same."""
    return f"device_profile_{number}"


def groups_of_profile(name: str, profiles: DeviceProfiles) -> tuple[ProfileGroup, ...]:
    """The groups of the profile. Raises UsageError where the host has no such profile."""
    groups = profiles.get(name)
    if groups is not None:
        return groups
    known = ", ".join(sorted(profiles))
    raise UsageError(
        f"{SPEC}={name}: "
        + (
            f"[claims] device_profiles has no such profile, it has {known}; "
            if known
            else "[claims] device_profiles names no file of profiles, and the agent does not ask Cyborg; "
        )
        + "add the profile, or name its resources and traits in the flavor, as in resources1:FPGA=1 and "
        "trait1:CUSTOM_FPGA_X=required.",
        spec=SPEC,
    )


def parse_device_profiles(text: bytes, file: str) -> DeviceProfiles:
    """The profiles of a file: a list of them, or Cyborg's answer {"device_profiles": [...]}, or one profile.

    Raises SettingsError, naming `file` and the key, where the file is invalid.
    """
    data = load_operator_yaml(text, file, "file of device profiles")
    if isinstance(data, dict):
        data = data["device_profiles"] if data.keys() == {"device_profiles"} else [data]
    if not isinstance(data, list) or len(data) > PROFILES_MAX:
        _refuse(file, "the top level", f"expected a list of at most {PROFILES_MAX} profiles")
    profiles: dict[str, tuple[ProfileGroup, ...]] = {}
    for number, item in enumerate(data):
        key = f"[{number}]"
        if not isinstance(item, dict):
            _refuse(file, key, "expected a profile with name and groups")
        unknown = sorted(str(name) for name in item.keys() - set(_KEYS))
        if unknown:
            _refuse(file, f"{key}.{unknown[0][:_SHOWN_MAX]}", f"the keys of a profile are {', '.join(_KEYS)}")
        name = item.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= 255 or not name.isprintable():
            _refuse(file, f"{key}.name", "expected a name of 1 to 255 characters")
        if name in profiles:
            _refuse(file, f"{key}.name", f"the profile {name!r} is there twice")
        groups, at = item.get("groups"), f"{key}.groups"
        if not isinstance(groups, list) or not 1 <= len(groups) <= GROUPS_MAX:
            _refuse(file, at, f"expected a list of 1 to {GROUPS_MAX} groups")
        profiles[name] = tuple(_read_group(each, file, f"{at}[{place}]") for place, each in enumerate(groups))
    return profiles


def _read_group(data: object, file: str, key: str) -> ProfileGroup:
    if not isinstance(data, dict):
        _refuse(file, key, "expected resources:CLASS and trait:TRAIT with their values")
    resources: dict[str, int] = {}
    traits: dict[str, set[str]] = {"required": set(), "forbidden": set()}
    for name, value in data.items():
        match = _KEY.fullmatch(str(name))
        if match is None:
            if str(name).startswith(_NO_CLAIM):
                continue
            _refuse(
                file, f"{key}.{str(name)[:_SHOWN_MAX]}", "expected resources:CLASS, trait:TRAIT or accel:NAME"
            )
        unknown = unknown_class(match[2]) if match[1] == "resources" else unknown_trait(match[2])
        if unknown:
            _refuse(file, f"{key}.{name}", unknown)
        if match[1] == "resources":
            text = str(value)
            if isinstance(value, bool) or not _WHOLE.fullmatch(text) or not 1 <= int(text) <= MAX_UNIT:
                why = f"{text[:_SHOWN_MAX]!r} is not a whole number between 1 and {MAX_UNIT}"
                _refuse(file, f"{key}.{name}", why)
            resources[match[2]] = int(text)
        elif value in ("required", "forbidden"):
            traits[value].add(match[2])
        else:
            _refuse(file, f"{key}.{name}", f"{str(value)[:_SHOWN_MAX]!r} is not one of required, forbidden")
    if not resources:
        _refuse(file, key, "the group asks for no resources")
    return ProfileGroup(resources, frozenset(traits["required"]), frozenset(traits["forbidden"]))


def _refuse(file: str, key: str, why: str) -> NoReturn:
    stop = "" if why.endswith((".", "?")) else "."
    raise SettingsError(f"{file}: {key}: {why}{stop}", file=file, key=key)
