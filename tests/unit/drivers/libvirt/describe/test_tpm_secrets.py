"""How TPM secrets are kept: the listed ways are traits of a host whose guests can have a TPM."""

from __future__ import annotations

import os_traits
import pytest

from agent.driver import DescribedProvider
from drivers.libvirt.describe.host import WAYS, tpm_secret_traits, with_tpm_secrets
from drivers.libvirt.describe.options import LibvirtOptions

START = "COMPUTE_SECURITY_TPM_SECRET_SECURITY_"
VERSION = "COMPUTE_SECURITY_TPM_2_0"


@pytest.mark.parametrize(
    ("traits", "ways", "added"),
    [
        ({VERSION}, ("user", "host"), {f"{START}USER", f"{START}HOST"}),
        ({VERSION}, (), set()),
        (set(), ("user",), set()),
    ],
)
def test_the_listed_ways_are_traits_where_guests_can_have_a_tpm(
    traits: set[str], ways: tuple[str, ...], added: set[str]
) -> None:
    root, cell = DescribedProvider("node1", traits=frozenset(traits)), DescribedProvider("cell", "node1")
    assert with_tpm_secrets([root, cell], ways)[0].traits == traits | added
    assert with_tpm_secrets([root, cell], ways)[1] == cell


def test_the_agent_decides_about_these_traits_only_if_any_is_listed() -> None:
    assert tpm_secret_traits(()) == frozenset()
    assert tpm_secret_traits(("host",)) == {f"{START}{way.upper()}" for way in WAYS}
    assert tpm_secret_traits(WAYS) <= set(os_traits.get_traits())
    assert LibvirtOptions.of({"supported_tpm_secret_security": ["user"]}).supported_tpm_secret_security == (
        "user",
    )
