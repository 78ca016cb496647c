"""Each name in nova's own lists has a row of docs/nova-parity.md; a new nova shows what is missing."""

from __future__ import annotations

import re

import os_traits
from nova.api.validation.extra_specs import validators
from nova.objects.image_meta import ImageMetaProps
from nova.scheduler import request_filter
from nova.virt import driver as virt_driver
from nova_rows import row_of

from agent.claims import extra_specs
from agent.config.options import NOVA_NAMES, why_refused
from parity.nova_query import CONF

NOT_ABOUT_THE_GUEST = {
    "require_tenant_aggregate",
    "map_az_to_placement_aggregate",
    "isolate_aggregates",
    "routed_networks_filter",
    "require_image_type_support",
    "remote_managed_ports_filter",
    "owner_nova_filter",
}
"""Prefilters that ask for aggregates, networks, owners or the format of the image's file."""

COMPARED = {
    "compute_status_filter",
    "transform_image_metadata",
    "accelerators_filter",
    "packed_virtqueue_filter",
    "ephemeral_encryption_filter",
    "virtio_sound_filter",
    "tpm_secret_security_filter",
}
"""Prefilters that `parity.nova_query` runs."""


def test_each_extra_spec_that_nova_validates_has_a_row() -> None:
    rows = {*(spec.key for spec in extra_specs.CLAIM_SPECS), *extra_specs.NO_CLAIM}
    free = tuple(row.removesuffix("*") for row in rows if row.endswith("*"))
    missing = []
    for key in validators.VALIDATORS or _loaded():
        name = re.sub(r"^(resources|trait)\{group\}:.*", r"\1[S]:", key).replace("{num}", "N")
        name = {"resources[S]:": "resources[S]:CLASS", "trait[S]:": "trait[S]:TRAIT"}.get(name, name)
        if name not in rows and not name.startswith(free):
            missing.append(key)
    assert not missing


def _loaded() -> dict[str, object]:
    validators.load_validators()
    return dict(validators.VALIDATORS)


def test_each_image_property_that_nova_reads_has_a_row() -> None:
    rows = {
        *(spec.image.removesuffix(".N") for spec in extra_specs.CLAIM_SPECS),
        *(row.key for row in extra_specs.TRAIT_PROPERTIES),
        *extra_specs.IMAGE_NO_CLAIM,
    }
    assert set(ImageMetaProps.fields) - {"traits_required"} <= rows


def test_each_prefilter_of_nova_is_compared_or_known_not_to_be_about_the_guest() -> None:
    names = {prefilter.__name__ for prefilter in request_filter.ALL_REQUEST_FILTERS}
    assert names == COMPARED | NOT_ABOUT_THE_GUEST


def test_each_trait_of_a_capability_of_nova_has_a_row() -> None:
    assert [trait for trait in virt_driver.CAPABILITY_TRAITS_MAP.values() if row_of(trait) is None] == []


def test_each_standard_trait_has_a_row() -> None:
    assert [trait for trait in os_traits.get_traits() if row_of(trait) is None] == []


NO_MORE = {
    ("pci", "passthrough_whitelist"),
    ("devices", "enabled_vgpu_types"),
    ("libvirt", "num_memory_encrypted_guests"),
    *(
        ("DEFAULT", name)
        for name in ("debug", "log_dir", "log_file", "use_journal", "use_syslog", "use_stderr")
    ),
}
"""Options that nova had before 34, and those of its library for logs."""


def options_of(group: str) -> set[str]:
    return set(CONF if group == "DEFAULT" else CONF[group])


def test_each_option_that_the_page_refuses_is_one_of_nova() -> None:
    named = {(group, name) for group, names in NOVA_NAMES.items() for name in names if name != "*"}
    assert {(group, name) for group, name in named if name not in options_of(group)} == NO_MORE


OWN = {
    "compute": {
        "cpu_dedicated_set",
        "cpu_shared_set",
        "provider_config_location",
        "resource_provider_association_refresh",
    },
    "pci": {"alias", "device_spec"},
    "devices": {"enabled_mdev_types"},
}
"""The options of nova in three groups that the agent has; it is not installed here, so they are named."""


def test_each_option_of_these_groups_is_taken_or_refused_with_the_reason() -> None:
    for group, own in OWN.items():
        assert own <= options_of(group)
        assert [name for name in options_of(group) - own if why_refused(group, name) is None] == []
