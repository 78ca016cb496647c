"""Every extra spec is known with what it asks for, known not to change a claim, or refused."""

from __future__ import annotations

import pytest

from agent.claims.extra_specs import (
    CLAIM_SPECS,
    NAMESPACES,
    NO_CLAIM,
    check_known,
    read_flag,
    without_effect,
)
from agent.errors import UsageError


@pytest.mark.parametrize(
    "key",
    [
        *(spec.key.replace(".N", ".7") for spec in CLAIM_SPECS if "[S]" not in spec.key),
        *(key.replace("*", "anything") for key in NO_CLAIM),
        *("ssd", "my:key", "quotas_of_mine"),
    ],
)
def test_a_known_spec_or_one_of_nobody_is_accepted(key: str) -> None:
    check_known(key)


@pytest.mark.parametrize(
    "namespace", sorted({*NAMESPACES} - {"capabilities", "aggregate_instance_extra_specs"})
)
def test_an_unknown_spec_of_a_known_namespace_is_refused_with_the_nearest(namespace: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {namespace}:"):
        check_known(f"{namespace}:no_such_spec")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("hw:numa_node", "hw:numa_nodes"),
        ("hw:numa_cpus", "hw:numa_cpus.0"),
        ("hw:cpu_polcy", "hw:cpu_policy"),
        ("group-policy", "group_policy"),
        ("resource:VGPU", "resources:VGPU"),
        ("quotas:cpu_shares", "quota:cpu_shares"),
        ("TRAIT:CUSTOM_A", "trait:CUSTOM_A"),
        ("Trait:CUSTOM_A", "trait:CUSTOM_A"),
        ("trait.1:CUSTOM_A", "trait:CUSTOM_A"),
        ("trait 1:CUSTOM_A", "trait:CUSTOM_A"),
        (f"resources{'a' * 65}:VGPU", "resources:VGPU"),
        ("RESOURCES:VGPU", "resources:VGPU"),
        ("HW:numa_cpus.0", "hw:numa_cpus.0"),
        ("Quota:cpu_shares", "quota:cpu_shares"),
        ("ACCEL:profile", "accel:profile"),
        ("Capabilities:free", "capabilities:free"),
        ("hw_cpu_policy", "hw:cpu_policy"),
        ("hw_numa_cpus.1", "hw:numa_cpus.0"),
        ("OS_Secure_Boot", "os:secure_boot"),
    ],
)
def test_a_misspelt_spec_is_refused_with_the_nearest(key: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {near}"):
        check_known(key)


def test_no_spec_is_in_both_lists() -> None:
    keys = [spec.key for spec in CLAIM_SPECS]
    assert len(keys) == len(set(keys)) and not set(keys) & NO_CLAIM.keys()


def test_truth_values_are_those_of_nova() -> None:
    assert all(read_flag("hw:pmu", text) for text in ("1", "T", "true", "On", "y", " yes "))
    assert not any(read_flag("hw:pmu", text) for text in ("0", "F", "false", "Off", "n", "no"))
    with pytest.raises(UsageError, match="hw:pmu: '2'"):
        read_flag("hw:pmu", "2")


@pytest.mark.parametrize(
    ("spec", "needs", "of_image"),
    [
        ("hw:tpm_model", "hw:tpm_version", "hw_tpm_version"),
        ("hw:tpm_secret_security", "hw:tpm_version", "hw_tpm_version"),
        ("hw:mem_encryption_model", "hw:mem_encryption", "hw_mem_encryption"),
        ("hw:ephemeral_encryption_format", "hw:ephemeral_encryption", "hw_ephemeral_encryption"),
        ("hw:cpu_realtime_mask", "hw:cpu_realtime", None),
    ],
)
def test_a_spec_that_another_must_accompany_is_told_without_it(
    spec: str, needs: str, of_image: str | None
) -> None:
    """nova asks for nothing then, and says nothing."""
    assert without_effect({spec: "x"}, {}) == (f"{spec} has no effect without {needs}",)
    assert without_effect({spec: "x", needs: "x"}, {}) == ()
    if of_image:
        assert without_effect({spec: "x"}, {of_image: "x"}) == ()
