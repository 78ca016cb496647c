"""PCI devices by alias: parse `[pci] alias` in nova's form, and turn requests for aliases into groups. Pure.

Each device becomes one request group, so that the devices may come from different providers. The groups are
made once, when the request arrives, from the configuration and the tree of that moment. They stay with the
claim: a later change of the configuration does not change it.

Source: https://docs.openstack.org/nova/latest/configuration/config.html#pci.alias
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent import device_names
from agent.claims.request import (
    DEVICE_PREFIX,
    NUMA_POLICIES,
    ClaimRequest,
    RequestGroup,
    check_request,
    is_device_group,
)
from agent.errors import SettingsError, UsageError
from agent.shapes import Units
from agent.strict_text import flag_of, id_of, known_object, read_json, text_of
from agent.tree import ProviderTree

SHOWN_MAX = 200

_KEYS = (
    *("name", "vendor_id", "product_id", "device_type", "numa_policy", "resource_class", "traits"),
    *("live_migratable", "capability_type"),
)
_NAME = re.compile(r"[^\s:,]{1,255}")
_MODEL_CLASS = re.compile(device_names.pci_class("[0-9A-F]{4}", "[0-9A-F]{4}"), re.ASCII)


@dataclass(frozen=True, slots=True)
class Alias:
    """A kind of device under the operator's name for it; ids are four hexadecimal digits.

    `resource_class` None stands for the class that the host's providers of such devices have.
    `live_migratable` None means that it does not matter.
    """

    name: str
    vendor_id: str | None = None
    product_id: str | None = None
    device_type: str | None = None
    numa_policy: str | None = None
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    live_migratable: bool | None = None

    @property
    def model_traits(self) -> frozenset[str]:
        """The traits of the providers that have such devices, in addition to the operator's `traits`."""
        traits = {device_names.TYPES[self.device_type]} if self.device_type else set()
        if self.vendor_id:
            traits.add(device_names.vendor_trait(self.vendor_id))
        if self.product_id:
            traits.add(device_names.product_trait(self.product_id))
        return frozenset(traits)


Aliases = Mapping[str, Alias]
"""{name: alias}"""


def parse_aliases(texts: Iterable[str]) -> Aliases:
    """The aliases of JSON texts, one each; blank texts are ignored. Raises SettingsError, naming the text."""
    aliases: dict[str, Alias] = {}
    for text in filter(str.strip, texts):
        shown = f"[pci] alias {text[:SHOWN_MAX]!r}"
        try:
            alias = _read_alias(read_json(text))
        except RecursionError as error:
            raise SettingsError(
                f"{shown} is not valid JSON: it is nested too deeply.", option="alias"
            ) from error
        except json.JSONDecodeError as error:
            raise SettingsError(f"{shown} is not valid JSON: {error}.", option="alias") from error
        except ValueError as error:
            raise SettingsError(f"{shown}: {error}.", option="alias") from error
        if alias.name in aliases:
            raise SettingsError(
                f"{shown}: the name {alias.name!r} is given twice; for an alias of several models, give them "
                "one resource_class in [pci] device_spec and use it here.",
                option="alias",
            )
        aliases[alias.name] = alias
    return aliases


def _read_alias(data: object) -> Alias:
    given = known_object(data, _KEYS)
    name = text_of(given, "name")
    if name is None or not _NAME.fullmatch(name):
        raise ValueError("it needs a name without blanks, colons and commas, by which a flavor asks for it")
    _read_choice(given, "capability_type", ("pci",))
    resource_class = text_of(given, "resource_class")
    alias = Alias(
        name,
        vendor_id=id_of(given, "vendor_id"),
        product_id=id_of(given, "product_id"),
        device_type=_read_choice(given, "device_type", tuple(device_names.TYPES)),
        numa_policy=_read_choice(given, "numa_policy", NUMA_POLICIES),
        resource_class=None if resource_class is None else device_names.custom_class(resource_class),
        traits=device_names.custom_traits((text_of(given, "traits") or "").split(",")),
        live_migratable=flag_of(given, "live_migratable"),
    )
    if alias.resource_class is None and (alias.vendor_id is None or alias.product_id is None):
        raise ValueError("it does not identify a device: give vendor_id and product_id, or resource_class")
    return alias


def _read_choice(data: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    text = text_of(data, key)
    if text is not None and text not in choices:
        raise ValueError(f"{key} is one of {', '.join(choices)}, not {text!r}")
    return text


def with_device_groups(
    request: ClaimRequest, aliases: Aliases, tree: ProviderTree, units: Units
) -> ClaimRequest:
    """The request with a group for each device that it asks for by alias.

    `units` are the exact units that the tree's providers offer. Raises UsageError where an alias is not
    configured, or stands for devices of several classes.
    """
    if not request.pci:
        return request
    if any(is_device_group(group) for group in request.groups):
        raise UsageError(
            f"groups: suffixes that begin with {DEVICE_PREFIX!r} are reserved for devices requested by alias."
        )
    device_groups: list[RequestGroup] = []
    for name, count in request.pci:
        alias = aliases.get(name)
        if alias is None:
            raise UsageError(
                f"pci_passthrough:alias: no alias {name!r} is configured on this host; [pci] alias has "
                f"{', '.join(sorted(aliases)) or 'none'}.",
                alias=name,
            )
        resource_class = alias.resource_class or _reported_class(alias, tree, units)
        required = alias.traits | alias.model_traits
        if (
            alias.vendor_id
            and alias.product_id
            and resource_class == device_names.pci_class(alias.vendor_id, alias.product_id)
        ):
            # The class name contains both ids; a driver need not report them as traits, too.
            required -= {
                device_names.vendor_trait(alias.vendor_id),
                device_names.product_trait(alias.product_id),
            }
        if alias.live_migratable:
            required |= {device_names.LIVE_MIGRATABLE}
        wanted = RequestGroup(
            resources={resource_class: 1},
            required=tuple(frozenset({trait}) for trait in sorted(required)),
            forbidden=frozenset({device_names.LIVE_MIGRATABLE})
            if alias.live_migratable is False
            else frozenset(),
            numa_policy=request.topology.pci_numa_policy or alias.numa_policy or "legacy",
        )
        device_groups += [
            replace(wanted, suffix=f"{DEVICE_PREFIX}{number}")
            for number in range(len(device_groups), len(device_groups) + count)
        ]
    return check_request(replace(request, groups=(*request.groups, *device_groups)))


def without_device_groups(request: ClaimRequest) -> ClaimRequest:
    """The request without the groups that `with_device_groups` added."""
    if not request.pci:
        return request
    return replace(request, groups=tuple(group for group in request.groups if not is_device_group(group)))


def _reported_class(alias: Alias, tree: ProviderTree, units: Units) -> str:
    """The class of such devices on this host; if it has none, the class that they would have."""
    assert alias.vendor_id is not None and alias.product_id is not None
    types = frozenset(device_names.TYPES.values())
    classes = {
        resource_class
        for provider in tree
        if alias.model_traits <= provider.traits and types & provider.traits
        for resource_class in units.get(provider.uuid, {})
        if resource_class in provider.inventories
    }
    own = device_names.pci_class(alias.vendor_id, alias.product_id)
    classes = {own} if own in classes else {name for name in classes if not _MODEL_CLASS.fullmatch(name)}
    if len(classes) > 1:
        raise UsageError(
            f"pci_passthrough:alias: {alias.name!r} stands for devices of the classes "
            f"{', '.join(sorted(classes))}: choose one in [pci] alias, by resource_class.",
            alias=alias.name,
        )
    return classes.pop() if classes else own
