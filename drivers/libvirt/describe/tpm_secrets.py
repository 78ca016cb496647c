"""How the secrets of emulated TPMs are kept: traits that an operator lists, as nova's option does. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from agent.driver import DescribedProvider

WAYS = ("user", "host", "deployment")

_VERSIONS = frozenset({"COMPUTE_SECURITY_TPM_1_2", "COMPUTE_SECURITY_TPM_2_0"})


def tpm_secret_traits(ways: Collection[str]) -> frozenset[str]:
    """The traits of these ways; of none of them, if no way is listed: another service may set them."""
    return frozenset(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{way.upper()}" for way in (WAYS if ways else ()))


def with_tpm_secrets(
    described: Sequence[DescribedProvider], ways: Collection[str]
) -> tuple[DescribedProvider, ...]:
    """The description, whose host has the traits of these ways if guests can have a TPM."""
    host, *others = described
    if not _VERSIONS & host.traits:
        return tuple(described)
    traits = frozenset(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{way.upper()}" for way in ways)
    return (replace(host, traits=host.traits | traits), *others)
