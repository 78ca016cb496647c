"""The uuids of what tests call by names."""

from uuid import NAMESPACE_DNS, uuid5


def uuid_of(name: str) -> str:
    """The uuid of the provider, the consumer or the host that a test calls by this name."""
    return str(uuid5(NAMESPACE_DNS, name))
