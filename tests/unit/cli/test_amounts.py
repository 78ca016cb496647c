"""Amounts with the units that people write; what is unclear or not whole is refused, never rounded."""

import pytest

from agent.cli.claim_request import parse_amounts
from agent.errors import UsageError


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("vcpus=2,memory_mb=2048,disk_gb=20", {"vcpus": 2, "memory_mb": 2048, "disk_gb": 20}),
        ("memory_mb=8GiB", {"memory_mb": 8192}),
        ("memory_mb=512M", {"memory_mb": 512}),
        ("memory_mb=1.5g", {"memory_mb": 1536}),
        ("memory_mb=2048KiB", {"memory_mb": 2}),
        ("disk_gb=1T", {"disk_gb": 1024}),
        ("disk_gb=2048MiB", {"disk_gb": 2}),
        ("MEMORY_MB=8GiB,DISK_GB=1TiB,VCPU=4", {"MEMORY_MB": 8192, "DISK_GB": 1024, "VCPU": 4}),
        ("NET_BW_EGR_KILOBIT_PER_SEC=5Gbit", {"NET_BW_EGR_KILOBIT_PER_SEC": 5_000_000}),
        ("NET_BW_IGR_KILOBIT_PER_SEC=10Mbit", {"NET_BW_IGR_KILOBIT_PER_SEC": 10_000}),
    ],
)
def test_what_people_write(text: str, amounts: dict[str, int]) -> None:
    assert parse_amounts("--resources", text) == amounts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory_mb=8GB", "powers of 1000 or of 1024; write GiB"),
        ("memory_mb=8Gbit", "is no unit of memory_mb"),
        ("memory_mb=1K", "1K is not a whole number of them"),
        ("disk_gb=512M", "counted in whole GiB"),
        ("VCPU=1.5", "not a whole number"),
        ("VCPU=2G", "VCPU is a count"),
        ("VCPU=-1", "VCPU cannot be negative"),
        ("VCPU", "'VCPU' has no whole number"),
        ("", "'' has no whole number"),
        ("VCPU=1,VCPU=2", "names VCPU twice"),
        ("memory_mb=1e3", "has no whole number"),
        ("memory_mb=\u0662", "has no whole number"),
    ],
)
def test_what_is_unclear_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse_amounts("--resources", text)
