"""The shapes of plain mappings that many modules pass to each other, each defined once.

Providers and consumers are keyed by uuid, resource classes by name. An amount is a whole number in the unit
of its class: MiB for MEMORY_MB, GiB for DISK_GB, a count for all others.
"""

from collections.abc import Mapping

Amounts = Mapping[str, int]
"""{resource class: amount}"""

Allocations = Mapping[str, Amounts]
"""{provider uuid: {resource class: amount}}: what one consumer has, as Placement's allocations write it."""

Usages = Mapping[str, Amounts]
"""{provider uuid: {resource class: amount}}: what all consumers together use of each provider."""

Holders = Mapping[str, Amounts]
"""{consumer uuid: {resource class: amount}}: the allocations on one provider, by consumer."""

Held = Mapping[str, Holders]
"""{provider uuid: {consumer uuid: {resource class: amount}}}: the allocations on several providers."""

Classes = Mapping[str, frozenset[str]]
"""{provider uuid: {resource class, ...}}"""

Units = Mapping[str, Mapping[str, tuple[str, ...]]]
"""{provider uuid: {resource class: (exact unit, ...)}}, only for classes that have exact units.

An exact unit is a thing that can be told apart from the others of its class: a CPU's id, a PCI address,
the uuid of a mediated device. The order is the one in which units are given out.
"""

Makings = Mapping[str, Mapping[str, str]]
"""{exact unit: {"parent": PCI address, "type": id of a mediated type}} of units that do not exist yet."""

UnitsToMake = Mapping[str, Mapping[str, Makings]]
"""{provider uuid: {resource class: makings}}: `DescribedProvider.to_make` of each provider."""
