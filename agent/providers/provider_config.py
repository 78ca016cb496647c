"""Provider config files in nova's format (provider.yaml, schema 1.0), and what they add to the tree. Pure.

The parser is stricter than nova's in three cases that nova accepts silently: it refuses unknown keys, keys
that are given twice, and YAML aliases (a few lines with aliases can expand to gigabytes).

`overlay` adds the entries to what the driver describes. An entry for one provider, by name or uuid, replaces
the general entry ($COMPUTE_NODE) for that provider entirely. The driver has precedence: a class that it
reports itself is left out of the entry, and a sentence says so. An entry for a provider that the driver does
not describe has no effect.

Source: https://docs.openstack.org/nova/latest/admin/managing-resource-providers.html
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NoReturn

import os_traits

from agent.driver import DescribedInventory, Description
from agent.errors import SettingsError
from agent.providers.limits import Caps
from agent.strict_text import key_path, load_operator_yaml
from agent.tree import MAX_UNIT

ENTRIES_MAX = 1024
SCHEMA_VERSION = "1.0"
COMPUTE_NODE = "$COMPUTE_NODE"
"""In place of a uuid: the host itself, unless another entry names it."""

_AMOUNT = {"type": "integer", "minimum": 0, "maximum": MAX_UNIT}
_UNIT = {"type": "integer", "minimum": 1, "maximum": MAX_UNIT}
_NAME = r"^CUSTOM_[A-Z0-9_]{1,248}$"
_UUID = r"^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _additional(items: Mapping[str, Any]) -> dict[str, Any]:
    return _object({"additional": {"type": "array", "items": items}})


_INVENTORY = _object(
    {
        "total": _AMOUNT,
        "reserved": _AMOUNT,
        "min_unit": _UNIT,
        "max_unit": _UNIT,
        "step_size": _UNIT,
        "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6},
    },
    "total",
)
_ENTRY = _object(
    {
        "identification": {
            **_object(
                {
                    "uuid": {"type": "string", "pattern": rf"{_UUID}|^\$COMPUTE_NODE$"},
                    "name": {"type": "string", "minLength": 1, "maxLength": 200},
                }
            ),
            "minProperties": 1,
            "maxProperties": 1,
        },
        "inventories": _additional({"type": "object", "additionalProperties": _INVENTORY}),
        "traits": _additional({"type": "string"}),
    },
    "identification",
)
_FILE = _object(
    {
        "meta": {
            "type": "object",
            "properties": {"schema_version": {"type": "string"}},
            "required": ["schema_version"],
        },
        "providers": {"type": "array", "items": _ENTRY, "maxItems": ENTRIES_MAX},
    },
    "meta",
)


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """What an operator adds to one provider, given by `name`, or by `uuid`, which may be COMPUTE_NODE.

    `file` and `key` ("providers[0]") are the entry's place in the configuration.
    """

    file: str
    key: str
    name: str | None = None
    uuid: str | None = None
    inventories: Mapping[str, DescribedInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The entry's place, for sentences: "file: key"."""
        return f"{self.file}: {self.key}"

    @property
    def provider(self) -> str:
        """The provider's name or uuid, for sentences."""
        return str(self.name or self.uuid)


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """All entries, in the order of their files; no two have the same name, or the same uuid.

    `caps` are those of the settings, which a reload replaces together with the files.
    """

    entries: tuple[ProviderEntry, ...] = ()
    caps: Caps = field(default_factory=dict)


def parse_provider_file(text: bytes, file: str) -> tuple[ProviderEntry, ...]:
    """The entries of one file that add something.

    Raises SettingsError, naming `file` and the key, where the file is invalid.
    """
    from jsonschema import Draft202012Validator  # late: it is slow to import, and only a file needs it
    from jsonschema.exceptions import best_match

    data = load_operator_yaml(text, file, "provider config file")
    version = data.get("meta") if isinstance(data, dict) else None
    version = version.get("schema_version") if isinstance(version, dict) else None
    if isinstance(version, str) and version != SCHEMA_VERSION:
        _refuse(file, "meta.schema_version", f"{version[:40]!r} is not supported, only {SCHEMA_VERSION!r} is")
    error = best_match(Draft202012Validator(_FILE).iter_errors(data))
    if error is not None:
        _refuse(file, key_path(error.absolute_path) or "the top level", error.message[:300])
    entries = [
        _read_entry(provider, file, f"providers[{number}]")
        for number, provider in enumerate(data.get("providers", ()))
    ]
    return tuple(entry for entry in entries if entry.inventories or entry.traits)


def merge_entries(entries: Iterable[ProviderEntry]) -> ProviderConfig:
    """Combine the entries of all files. Raises SettingsError where two of them are for the same provider."""
    all_entries = tuple(entries)
    seen: dict[tuple[str | None, str | None], ProviderEntry] = {}
    for entry in all_entries:
        known = seen.setdefault((entry.name, entry.uuid), entry)
        if known is not entry:
            _refuse(
                entry.file,
                f"{entry.key}.identification",
                f"{known.where} already configures provider {entry.provider}; merge the two entries",
            )
    return ProviderConfig(all_entries)


def _read_entry(data: Mapping[str, Any], file: str, key: str) -> ProviderEntry:
    inventories: dict[str, DescribedInventory] = {}
    for number, inventory_item in enumerate(data.get("inventories", {}).get("additional", ())):
        for name, amounts in inventory_item.items():
            where = f"{key}.inventories.additional[{number}].{name}"
            _check_custom(name, "resource class", file, where)
            if name in inventories:
                _refuse(file, where, "this resource class is given twice")
            # Keys that are not given have Placement's defaults.
            if amounts.get("reserved", 0) > amounts["total"]:
                _refuse(
                    file,
                    f"{where}.reserved",
                    f"{amounts['reserved']} cannot be reserved of {amounts['total']}",
                )
            if not isfinite(amounts.get("allocation_ratio", 1.0)):
                _refuse(file, f"{where}.allocation_ratio", "the value is not a finite number")
            inventories[name] = DescribedInventory(
                **{"max_unit": MAX_UNIT, "allocation_ratio": 1.0, **amounts}
            )
    traits = data.get("traits", {}).get("additional", ())
    for number, name in enumerate(traits):
        _check_custom(name, "trait", file, f"{key}.traits.additional[{number}]")
    identification = data["identification"]
    uuid = identification.get("uuid")
    return ProviderEntry(
        file,
        key,
        identification.get("name"),
        uuid if uuid in (None, COMPUTE_NODE) else uuid.lower(),
        inventories,
        frozenset(traits),
    )


def _check_custom(name: str, kind: str, file: str, where: str) -> None:
    if not re.fullmatch(_NAME, name):
        _refuse(
            file,
            where,
            f"{name[:80]!r} is not a custom {kind}; its name must be CUSTOM_ followed by A-Z, 0-9 or _",
        )


def _refuse(file: str, key: str, why: str) -> NoReturn:
    raise SettingsError(f"{file}: {key}: {why}.", file=file, key=key)


STATUS_DISABLED: str = os_traits.COMPUTE_STATUS_DISABLED
CLOSED = "CUSTOM_PLIMSOLL_CLOSED"
"""Beside STATUS_DISABLED: the agent has set both, in one write, since the host is closed.

So Placement itself keeps who disabled the host: also where the journal is away, or the agent dies in between.
"""


@dataclass(frozen=True, slots=True)
class OverlayResult:
    """The description with the configured inventories and traits.

    `conflicts` are sentences on what was left out; `unmatched` are the entries whose provider is not
    described.
    """

    description: Description
    conflicts: tuple[str, ...] = ()
    unmatched: tuple[ProviderEntry, ...] = ()


def overlay(config: ProviderConfig, description: Description, uuids: Mapping[str, str]) -> OverlayResult:
    """Add the configured entries to the description.

    `uuids` is {provider name: uuid} of all described providers.
    """
    if not config.entries:
        return OverlayResult(description)
    names = {uuid: name for name, uuid in uuids.items()}
    conflicts: list[str] = []
    unmatched: list[ProviderEntry] = []
    chosen: dict[str, ProviderEntry] = {}
    for entry in sorted(config.entries, key=lambda entry: entry.uuid == COMPUTE_NODE):
        if entry.uuid == COMPUTE_NODE:
            chosen.setdefault(description.providers[0].name, entry)
            continue
        name = entry.name if entry.uuid is None else names.get(entry.uuid)
        if name is None or name not in uuids:
            unmatched.append(entry)
        elif name in chosen:
            conflicts.append(
                f"{entry.where}.identification: {entry.provider} is {name}, which "
                f"{chosen[name].where} already configures; this entry is ignored. Merge the two entries."
            )
        else:
            chosen[name] = entry
    providers = []
    for provider in description.providers:
        extra = chosen.get(provider.name)
        if extra is None:
            providers.append(provider)
            continue
        # What the driver moves away from the provider, it reports there, too.
        moves = (move for move in description.moves if move.from_resource_provider == provider.name)
        reported = {*provider.inventories, *(name for move in moves for name in move.moved_resources)}
        for name in sorted(reported & extra.inventories.keys()):
            conflicts.append(
                f"{extra.where}.inventories.additional: the driver itself reports {name} on {provider.name}; "
                "this inventory is ignored. Remove it from the file, or choose another class."
            )
        added = {name: amounts for name, amounts in extra.inventories.items() if name not in reported}
        inventories = {**provider.inventories, **added}
        providers.append(replace(provider, inventories=inventories, traits=provider.traits | extra.traits))
    changed = replace(description, providers=tuple(providers))
    return OverlayResult(changed, tuple(conflicts), tuple(unmatched))


def with_status_disabled(description: Description) -> Description:
    """The description of a host that schedulers must not choose, by nova's trait."""
    host, *others = description.providers
    disabled = replace(host, traits=host.traits | {STATUS_DISABLED})
    return replace(description, providers=(disabled, *others))


def closed_traits(traits: frozenset[str], *, closed: bool, paused: bool) -> frozenset[str]:
    """The root's traits on a host that has been closed for long, or is open again.

    What another client said stays. `paused`: a pause tells schedulers as well, so its trait stays.
    """
    if closed:
        return traits if STATUS_DISABLED in traits else traits | {STATUS_DISABLED, CLOSED}
    if CLOSED not in traits:
        return traits
    return traits - ({CLOSED} if paused else {CLOSED, STATUS_DISABLED})
