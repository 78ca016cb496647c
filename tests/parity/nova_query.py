"""nova's own query for a flavor and an image: its validation, prefilters and resource request."""

from __future__ import annotations

import logging
from typing import Any

from nova import context, exception, objects
from nova.accelerator import cyborg
from nova.api.validation.extra_specs import validators
from nova.conf import CONF
from nova.scheduler import request_filter
from nova.scheduler.utils import ResourceRequest
from nova.virt import hardware

from parity.demands import PROFILES
from parity.query import Cells, Demand, Group, Query

logging.disable(logging.ERROR)  # nova warns of each property that it ignores
objects.register_all()
CONF([], project="nova", default_config_files=[])
CONF.set_override("image_metadata_prefilter", True, group="scheduler")
CONF.set_override("pci_in_placement", True, group="filter_scheduler")
CONTEXT = context.RequestContext("user", "project", is_admin=True)


def _profile_list(_client: object, name: str) -> list[dict[str, object]]:
    return [{"name": name, "groups": PROFILES[name]}] if name in PROFILES else []


cyborg._CyborgClient._get_device_profile_list = _profile_list  # instead of a request to Cyborg

FILTERS = (
    request_filter.compute_status_filter,
    request_filter.transform_image_metadata,
    request_filter.accelerators_filter,
    request_filter.packed_virtqueue_filter,
    request_filter.ephemeral_encryption_filter,
    request_filter.virtio_sound_filter,
    request_filter.tpm_secret_security_filter,
)
"""The prefilters that read nothing but the flavor and the image."""

UNCHECKED = "hw:maxphysaddr_"
"""nova 34 reads these specs, but its API knows none of them since the microversion that checks specs."""

# What the API answers 400 to, and what the objects of an image raise for a value that they do not have
REFUSALS = (exception.NovaException, ValueError, TypeError)


PAGE_WORDS = {
    "small": hardware.MEMPAGES_SMALL,
    "large": hardware.MEMPAGES_LARGE,
    "any": hardware.MEMPAGES_ANY,
}


class NovaRefuses(Exception):
    """nova's API refuses the flavor or the image."""


def guest(demand: Demand) -> tuple[objects.Flavor, objects.ImageMeta]:
    """The flavor and the image as nova's objects, checked by nova's API. Raises what nova raises."""
    for key, value in demand.specs.items():
        if not key.startswith(UNCHECKED):
            validators.validate(key, value)
    properties = objects.ImageMetaProps.from_dict(dict(demand.image or {}))
    image = objects.ImageMeta(properties=properties, name="image", id="image")
    flavor = objects.Flavor(
        id=1,
        flavorid="1",
        name="flavor",
        vcpus=demand.vcpus,
        memory_mb=demand.memory_mb,
        root_gb=demand.disk_gb,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(demand.specs),
    )
    return flavor, image


def nova_cells(demand: Demand) -> Cells | None:
    """The guest's cells as nova's compute places them. Raises NovaRefuses."""
    try:
        topology = hardware.numa_get_constraints(*guest(demand))
    except REFUSALS as error:
        raise NovaRefuses(f"{type(error).__name__}: {error}") from error
    if topology is None:
        return None
    words = {value: word for word, value in PAGE_WORDS.items()}
    return Cells(
        tuple((frozenset(cell.cpuset), frozenset(cell.pcpuset), cell.memory) for cell in topology.cells),
        words.get(topology.cells[0].pagesize, topology.cells[0].pagesize),
        topology.cells[0].cpu_thread_policy,
        topology.emulator_threads_policy == "isolate",
    )


def request_spec(flavor: objects.Flavor, image: objects.ImageMeta, **more: Any) -> objects.RequestSpec:
    """nova's request for one instance; `more` are further fields of it."""
    return objects.RequestSpec(
        flavor=flavor,
        image=image,
        is_bfv=False,
        num_instances=1,
        request_level_params=objects.RequestLevelParams(
            root_required=set(), root_forbidden=set(), same_subtree=[]
        ),
        **more,
    )


def nova_query(demand: Demand) -> Query:
    """The query that nova's scheduler sends to Placement. Raises NovaRefuses."""
    try:
        flavor, image = guest(demand)
        hardware.numa_get_constraints(flavor, image)
        spec = request_spec(flavor, image, requested_resources=_profile_groups(demand))
        for prefilter in FILTERS:
            prefilter(CONTEXT, spec)
        request = ResourceRequest.from_request_spec(spec)
        if request.get_num_of_suffixed_groups() > 1 and request.suffixed_groups_from_flavor <= 1:
            request.group_policy = request.group_policy or "none"  # as resources_from_request_spec does
    except REFUSALS as error:
        raise NovaRefuses(f"{type(error).__name__}: {error}") from error
    return Query(
        {
            suffix or "": Group(
                dict(group.resources), frozenset(group.required_traits), frozenset(group.forbidden_traits)
            )
            for suffix, group in request._rg_by_id.items()
        },
        frozenset(request._root_required),
        frozenset(request._root_forbidden),
        request.group_policy,
    )


def _profile_groups(demand: Demand) -> list[objects.RequestGroup]:
    """What nova's conductor adds for a device profile."""
    name = demand.specs.get("accel:device_profile")
    return cyborg.get_device_profile_request_groups(CONTEXT, name) if name else []
