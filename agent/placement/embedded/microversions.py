"""The microversions of the Placement API, 1.0 to 1.39, and what each changed.

No other module knows in which microversion something appeared. A microversion is represented by its minor
number; `minor >= TRAITS` reads "the request's microversion has traits". Source:
https://docs.openstack.org/placement/latest/placement-api-microversion-history.html.
"""

from __future__ import annotations

from agent.placement.embedded.problems import BAD_REQUEST, NOT_ACCEPTABLE, RequestRefused

MIN, MAX = 0, 39

# name                        minor   what changes for a client
AGGREGATES = 1  #                     aggregates of a provider
CUSTOM_CLASSES = 2  #                 /resource_classes
LIST_MEMBER_OF = 3  #                 member_of on the provider list
LIST_RESOURCES = 4  #                 resources on the provider list
DELETE_INVENTORIES = 5  #             DELETE of all inventories (405 before)
TRAITS = 6  #                         /traits and the traits of a provider
CLASS_PUT_CREATES = (
    7  #              PUT /resource_classes/{name} creates, without a body (before: it renames)
)
PROJECT_AND_USER = 8  #               project_id and user_id required in PUT /allocations/{consumer}
USAGES = 9  #                         /usages
CANDIDATES = 10  #                    /allocation_candidates
ALLOCATIONS_LINK = 11  #              link to the allocations in a provider
ALLOCATIONS_BY_PROVIDER = (
    12  #       allocations keyed by provider (before: a list); GET shows project and user
)
POST_ALLOCATIONS = 13  #              POST /allocations, for several consumers at once
NESTED_PROVIDERS = 14  #              parent and root of a provider; in_tree on the provider list
LAST_MODIFIED = 15  #                 last-modified and cache-control headers
CANDIDATES_LIMIT = 16  #              limit on candidates
CANDIDATES_REQUIRED = 17  #           required on candidates; traits in the summaries
LIST_REQUIRED = 18  #                 required on the provider list
AGGREGATES_GENERATION = 19  #         generation in aggregates; PUT of them raises it
CREATED_PROVIDER_BODY = 20  #         POST of a provider answers 200 and a body (before: 201, empty)
CANDIDATES_MEMBER_OF = 21  #          member_of on candidates
FORBIDDEN_TRAITS = 22  #              !TRAIT in required
ERROR_CODES = 23  #                   code in errors
REPEATED_MEMBER_OF = 24  #            member_of more than once, all must hold
GRANULAR_GROUPS = 25  #               numbered request groups, group_policy
RESERVED_MAY_BE_TOTAL = 26  #         reserved may equal total
SUMMARIES_ALL_CLASSES = 27  #         all classes of a provider in the summaries
CONSUMER_GENERATION = 28  #           generation of consumers; empty allocations delete
CANDIDATES_TREES = 29  #              candidates see trees; parent and root in the summaries
RESHAPER = 30  #                      POST /reshaper
CANDIDATES_IN_TREE = 31  #            in_tree and in_treeN on candidates
FORBIDDEN_AGGREGATES = 32  #          !aggregate in member_of
STRING_SUFFIXES = 33  #               suffixes [A-Za-z0-9_-]{1,64} (before: [1-9][0-9]*)
MAPPINGS = 34  #                      mappings in candidates, and accepted in allocations
ROOT_REQUIRED = 35  #                 root_required on candidates
SAME_SUBTREE = 36  #                  same_subtree, and groups without resources
REPARENTING = 37  #                   re-parenting and un-parenting of providers
CONSUMER_TYPES = 38  #                consumer_type, required in writes; usages grouped by it
ANY_TRAITS = 39  #                    in:A,B in required, and required more than once

HEADER = "openstack-api-version"
SERVICE = "placement"


def parse(wanted: str | None) -> int:
    """The minor number of a microversion as a client writes it: "1.N", "latest", or None for 1.0.

    Raises RequestRefused: 400 for malformed text, 406 for a microversion that is not served.
    """
    if wanted is None:
        return MIN
    minor = _MINORS.get(wanted)
    if minor is not None:
        return minor
    major_text, _, minor_text = wanted.partition(".")
    try:
        version = (int(major_text), int(minor_text))
    except ValueError:
        raise RequestRefused(
            BAD_REQUEST, f"{wanted!r} is not a microversion; expected {SERVICE} 1.N."
        ) from None
    if version[0] == 1 and MIN <= version[1] <= MAX:
        return version[1]
    raise RequestRefused(NOT_ACCEPTABLE, f"Microversion {wanted} is not served; 1.{MIN} to 1.{MAX} are.")


def from_header(header: str | None) -> str | None:
    """The microversion that an OpenStack-API-Version header requests of this service; the last one wins."""
    for part in reversed((header or "").split(",")):
        service, _, version = part.strip().partition(" ")
        if service.lower() == SERVICE and version.strip():
            return version.strip()
    return None


def text(minor: int) -> str:
    """The microversion as clients write it, "1.N"."""
    return f"1.{minor}"


_MINORS = {text(minor): minor for minor in range(MIN, MAX + 1)} | {"latest": MAX}
