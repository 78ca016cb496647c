"""From the words of `plimsoll claim` to a body that the agent reads; what is unclear is refused at once."""

import io
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.claims.parse_request import parse_claim
from agent.cli.claim_request import CHARS_MAX, STANDARD_INPUT, claim_body, parse_amounts, read_text_file
from agent.cli.parser import build, defaults
from agent.errors import UsageError

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def body(*words: str) -> dict[str, Any]:
    return claim_body(build().parse_args(["claim", *words], defaults()))


def test_resources_groups_and_traits() -> None:
    made = body(
        CONSUMER,
        *("--resources", "VCPU=2,MEMORY_MB=2048"),
        *("--group", "1:VGPU=1", "--group", "_NET:SRIOV_NET_VF=2,NET_BW_EGR_KILOBIT_PER_SEC=1000"),
        *("--required", "HW_CPU_X86_AVX2", "--required", "!CUSTOM_OLD", "--required", "in:CUSTOM_A,CUSTOM_B"),
        *("--required", "1:CUSTOM_GPU", "--required", "_NET:!CUSTOM_X"),
        *("--group-policy", "isolate", "--name", "web1"),
    )
    assert made == {
        "consumer": CONSUMER,
        "name": "web1",
        "group_policy": "isolate",
        "groups": [
            {
                "resources": {"VCPU": 2, "MEMORY_MB": 2048},
                "required": ["HW_CPU_X86_AVX2", "!CUSTOM_OLD", "in:CUSTOM_A,CUSTOM_B"],
            },
            {"suffix": "1", "resources": {"VGPU": 1}, "required": ["CUSTOM_GPU"]},
            {
                "suffix": "_NET",
                "resources": {"SRIOV_NET_VF": 2, "NET_BW_EGR_KILOBIT_PER_SEC": 1000},
                "required": ["!CUSTOM_X"],
            },
        ],
    }
    assert {group.suffix for group in parse_claim(made).groups} == {"", "1", "_NET"}


def test_groups_of_one_subtree() -> None:
    """The first has a provider above it that only the trait says, the second is one of its groups."""
    made = body(
        CONSUMER,
        *("--group", "a:PGPU=1", "--group", "b:PGPU=1", "--group-policy", "none"),
        *("--same-subtree", "a,b:CUSTOM_PCIE_SWITCH,!CUSTOM_OLD", "--same-subtree", "b,a"),
    )
    assert made["same_subtree"] == [["a", "b", "_top0"], ["b", "a"]]
    assert made["groups"][2:] == [
        {"suffix": "_top0", "resources": {}, "required": ["CUSTOM_PCIE_SWITCH", "!CUSTOM_OLD"]}
    ]
    assert parse_claim(made).same_subtree == (frozenset({"a", "b", "_top0"}), frozenset({"a", "b"}))


@pytest.mark.parametrize("text", ["a,c", "a,:CUSTOM_X", "a:", ":CUSTOM_X"])
def test_a_subtree_of_nothing_or_of_groups_that_are_not_there_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        words = ("--group", "a:PGPU=1", "--group-policy", "none", "--same-subtree", text)
        parse_claim(body(CONSUMER, *words))
    assert "_top" not in refused.value.message


def test_a_group_that_is_called_as_one_for_a_trait_is_not_lost() -> None:
    words = ("--group", "_top0:PGPU=1", "--group", "b:PGPU=1", "--group-policy", "none")
    request = parse_claim(body(CONSUMER, *words, "--same-subtree", "_top0,b:CUSTOM_X", "--same-subtree", "b"))
    assert request.resources == {"PGPU": 2}
    assert request.same_subtree == (frozenset({"_top0", "b", "_top1"}), frozenset({"b"}))


@pytest.mark.parametrize("groups", [["a"], ["a", "b"]])
def test_a_trait_above_groups_needs_a_group_policy(groups: list[str]) -> None:
    """The refusal names what was written, not the group that stands for the trait."""
    words = [word for suffix in groups for word in ("--group", f"{suffix}:PGPU=1")]
    text = f"{','.join(groups)}:CUSTOM_PCIE_SWITCH"
    with pytest.raises(UsageError, match=f"--same-subtree '{text}' needs --group-policy: isolate puts"):
        parse_claim(body(CONSUMER, *words, "--same-subtree", text))


def test_a_flavor_with_image_properties() -> None:
    image = ("--image", "hw_disk_bus=virtio", "--image", "trait:HW_CPU_X86_AVX2=required")
    made = body(CONSUMER, "--flavor", "vcpus=2,memory_mb=2048", *image)
    assert made["image"] == {"hw_disk_bus": "virtio", "trait:HW_CPU_X86_AVX2": "required"}


def test_a_flavor_with_extra_specs() -> None:
    specs = (
        "--spec",
        "hw:cpu_policy=dedicated",
        "--spec",
        "resources:VGPU=1",
        "--spec",
        "capabilities:x=a=b",
    )
    made = body(CONSUMER, "--flavor", "vcpus=2,memory_mb=2048,disk_gb=10", *specs)
    assert made["flavor"] == {
        "vcpus": 2,
        "memory_mb": 2048,
        "disk_gb": 10,
        "extra_specs": {"hw:cpu_policy": "dedicated", "resources:VGPU": "1", "capabilities:x": "a=b"},
    }
    assert parse_claim(made).resources == {"PCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10, "VGPU": 1}


@pytest.mark.parametrize("words", [(), ("new",)])
def test_without_a_consumer_a_new_uuid_is_made(words: tuple[str, ...]) -> None:
    first, second = (body(*words, "--resources", "VCPU=1")["consumer"] for _ in range(2))
    assert UUID(first) != UUID(second)


def test_a_file_or_standard_input_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"consumer": CONSUMER, "groups": [{"resources": {"VCPU": 1}}]}
    path = tmp_path / "body.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    assert body("--file", str(path)) == told
    assert body("--file", str(path), "--name", "web1") == {**told, "name": "web1"}
    assert body("new", "--file", str(path))["consumer"] != CONSUMER
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(told)))
    assert body("--file", "-") == told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "none is given"),
        (("--name", "web1"), "none is given"),
        (
            ("--resources", "VCPU=1", "--flavor", "vcpus=1,memory_mb=1"),
            "not --flavor and --resources or --group",
        ),
        (("--resources", "VCPU=two"), "'VCPU=two' has no whole number"),
        (("--group", "VGPU=1"), "is not SUFFIX:CLASS=N"),
        (("--group", "1:VGPU=1", "--group", "1:VCPU=1"), "--group 1 is given twice"),
        (("--flavor", "vcpus=1", "--spec", "hw:cpu_policy"), "is not KEY=VALUE"),
        (("--flavor", "vcpus=1", "--spec", "a=1", "--spec", "a=2"), "--spec a is given twice"),
        (("--flavor", "vcpus=1"), "lacks memory_mb"),
        (("--resources", "VCPU=1", "--spec", "a=1"), "--spec needs --flavor"),
        (("--resources", "VCPU=1", "--image", "a=1"), "--image needs --flavor"),
        (("--flavor", "vcpus=1", "--image", "hw_disk_bus"), "is not KEY=VALUE"),
        (("--flavor", "vcpus=1", "--image", "a=1", "--image", "a=2"), "--image a is given twice"),
        (("--flavor", "vcpus=1", "--required", "HW_A"), "--required needs --resources"),
        (("--resources", "VCPU=1", "--group-policy", "none"), "--group-policy needs --group"),
        (("--resources", "VCPU=1", "--group-policy", "maybe"), "invalid choice"),
        (("--resources", "VCPU=1", "--same-subtree", "a,b"), "--same-subtree needs --group"),
        (("--flavor", "cpus=1"), "cpus is unknown; write vcpus=N,memory_mb=N"),
        (("--flavor", "vcpus=1,memory_mb=1.5K"), "memory_mb is counted in whole MiB"),
        (("--connect", ""), "the value is an empty text"),
    ],
)
def test_what_is_unclear_is_refused(words: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint.replace("(", r"\(")):
        body(*words)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "must hold a JSON object"),
        (b"\xff", "is not UTF-8"),
        (b" " * (1024 * 1024 + 1), "is longer than"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "body.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        body("--file", str(path))


@settings(deadline=None)
@given(words=st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_whatever_is_given_is_a_body_or_a_usage_error(words: list[str]) -> None:
    for option in ("--resources", "--group", "--flavor"):
        try:
            made = body(*(f"{option}={word}" for word in words))
        except UsageError as error:
            assert error.message
        else:
            assert json.dumps(made)


@pytest.mark.parametrize("command", [("defrag", "--dry-run"), ("explain", "--capacity")])
def test_an_error_names_no_other_command(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        claim_body(build().parse_args([*command], defaults()))
    assert caught.value.message.startswith("give the resources by --file")


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
        ("VCPU=1.5", "VCPU is counted in whole units"),
        ("VCPU=two", "'VCPU=two' has no whole number"),
        ("VCPU=²", "has no whole number"),
        ("VCPU=" + "9" * 5000, "has more digits than any amount"),
        ("VCPU=1,", "'' has no whole number"),
        ("VCPU=2G", "VCPU is a count"),
        ("VCPU=-1", "VCPU cannot be negative"),
        ("VCPU", "'VCPU' has no whole number"),
        ("", "'' has no whole number"),
        ("VCPU=1,VCPU=2", "names VCPU twice"),
        ("memory_mb=1e3", "has no whole number"),
        ("memory_mb=\u0662", "has no whole number"),
    ],
)
def test_an_unclear_amount_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse_amounts("--resources", text)


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "web.xml"
    file.write_bytes(b"<domain>\r\n</domain>")
    assert read_text_file("domain", str(file)) == "<domain>\r\n</domain>", "byte for byte"
    monkeypatch.setattr("sys.stdin", io.StringIO("text"))
    assert read_text_file("domain", STANDARD_INPUT) == "text"


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "web.xml"
    file.write_bytes(b"x" * (CHARS_MAX + 1))
    with pytest.raises(UsageError, match="longer than"):
        read_text_file("domain", str(file))
    with pytest.raises(UsageError, match=r"claim: .* cannot be read"):
        read_text_file("claim", str(tmp_path))
