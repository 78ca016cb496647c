"""A flavor with a device profile, by the local API: exact devices, kept over a resize and an edited file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent import World, told, world_of
from kits.placements import Placement

from agent.api.routes import Call, begin_move, claim, show_claim
from agent.config.settings import reload
from agent.errors import DoesNotFit, UsageError
from agent.http.unix_socket import PeerCredentials
from drivers.fake.host import Gpu, cell

PROFILE = """
- name: fpga
  groups:
    - {"resources:FPGA": 1, "trait:CUSTOM_ARRIA10": required}
    - {"resources:FPGA": 2}
"""
CARDS = tuple(
    Gpu(f"0000:8{n}:00.0", "FPGA", 2, (f"fpga{n}a", f"fpga{n}b"), traits=frozenset(traits))
    for n, traits in enumerate(((), ("CUSTOM_ARRIA10",)))
)


@pytest.fixture
def world(tmp_path: Path, placement: Placement) -> Iterator[World]:
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text(PROFILE)
    settings = told(tmp_path, placement, f"[claims]\ndevice_profiles = {profiles}\n")
    cells = (cell(0, frozenset(range(8)), 16384),)
    with world_of(settings, cells=cells, disk_gb=100, gpus=CARDS, nics=(), guests=()) as found:
        yield found


def call(world: World, **path: str) -> Call:
    return Call(world.operations, PeerCredentials(1, 0, 0), path)


def asked(consumer: str, profile: str = "fpga") -> dict[str, object]:
    flavor = {"vcpus": 1, "memory_mb": 512, "extra_specs": {"accel:device_profile": profile}}
    return {"consumer": consumer, "flavor": flavor}


def devices(claim: dict[str, Any]) -> dict[str, list[str]]:
    return {
        each["suffix"]: sorted(unit for classes in each["units"].values() for unit in classes["FPGA"])
        for each in claim["mappings"]
        if each["suffix"]
    }


def test_each_group_of_the_profile_gets_exact_devices_with_its_traits(world: World) -> None:
    given = devices(claim(call(world), asked(str(uuid4()))).body)
    assert given.keys() == {"device_profile_0", "device_profile_1"}
    assert given["device_profile_0"] in (["fpga1a"], ["fpga1b"])
    assert given["device_profile_1"] == ["fpga0a", "fpga0b"], "the second group has one provider's two"
    with pytest.raises(DoesNotFit, match="FPGA"):
        claim(call(world), asked(str(uuid4())))
    with pytest.raises(UsageError, match=r"it has fpga"):
        claim(call(world), asked(str(uuid4()), "gpu"))


def test_a_claim_keeps_its_groups_when_the_file_changes(world: World, tmp_path: Path) -> None:
    consumer = str(uuid4())
    before = claim(call(world), asked(consumer)).body
    (tmp_path / "profiles.yaml").write_text(PROFILE.replace("name: fpga", "name: other"))
    settings = reload(world.agent.settings, [tmp_path / "plimsoll.conf"]).settings
    world.agent.apply_settings(settings, None)
    shown = show_claim(call(world, consumer=consumer))
    assert devices(shown) == devices(before)
    with pytest.raises(UsageError, match=r"it has other"):
        claim(call(world), asked(str(uuid4())))


def test_a_resize_on_the_host_asks_for_the_profile_again(world: World) -> None:
    consumer, migration = str(uuid4()), str(uuid4())
    plain = {"vcpus": 1, "memory_mb": 512}
    claim(call(world), {"consumer": consumer, "flavor": plain})
    body = {"kind": "resize", "migration": migration, "request": asked(consumer)}
    moved = begin_move(call(world), body).body
    assert devices(moved["new"])["device_profile_1"] == ["fpga0a", "fpga0b"]
