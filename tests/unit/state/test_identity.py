"""The host's identity: made once, never guessed."""

import uuid
from pathlib import Path

import pytest

from agent.errors import IdentityError, UsageError
from agent.state.identity import adopt_identity, establish_identity, network_cards

A = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11"
B = "5f1c44a2-1f0e-4d0e-8a89-0f8a5ce2f222"


def files(path: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in path.iterdir() if file.is_file()}


def test_a_first_start_makes_a_uuid_once(tmp_path: Path) -> None:
    first = establish_identity(tmp_path, "node1", None)
    assert uuid.UUID(first.uuid).version == 4
    assert files(tmp_path) == {"host_id": f"{first.uuid}\n", "host_name": "node1\n"}
    assert establish_identity(tmp_path, "node1", first.uuid) == first
    assert (tmp_path / "host_id").stat().st_mode & 0o777 == 0o600


def test_a_provisioned_uuid_is_used_whatever_blanks_surround_it(tmp_path: Path) -> None:
    (tmp_path / "host_id").write_text(f"  {A.upper()}\n\n")
    assert establish_identity(tmp_path, "node1", None).uuid == A
    assert files(tmp_path)["host_id"] == f"  {A.upper()}\n\n"


def test_a_uuid_in_the_configuration_directory_is_used_and_not_copied(tmp_path: Path) -> None:
    etc, state = tmp_path / "etc", tmp_path / "state"
    etc.mkdir()
    state.mkdir()
    (etc / "host_id").write_text(A)
    assert establish_identity(state, "node1", None, [etc]).uuid == A
    assert not (state / "host_id").exists()


def test_copies_that_disagree_are_refused(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "host_id").write_text(A)
    (tmp_path / "host_id").write_text(B)
    with pytest.raises(IdentityError, match="uuid files differ"):
        establish_identity(tmp_path, "node1", None, [etc])


@pytest.mark.parametrize(
    ("content", "recorded", "name", "words"),
    [
        (None, A, "node1", [f"plimsoll adopt {A}", "is gone"]),
        ("not-a-uuid", A, "node1", ["'not-a-uuid'", "plimsoll adopt"]),
        ("", None, "node1", ["is not a uuid"]),
        (A, B, "node1", [A, B, "plimsoll adopt"]),
        (A, A, "node2", ["'node1'", "'node2'", f"plimsoll adopt {A}"]),
    ],
)
def test_what_is_unclear_is_refused_and_nothing_is_written(
    tmp_path: Path, content: str | None, recorded: str | None, name: str, words: list[str]
) -> None:
    (tmp_path / "host_name").write_text("node1\n")
    if content is not None:
        (tmp_path / "host_id").write_text(content)
    before = files(tmp_path)
    with pytest.raises(IdentityError) as caught:
        establish_identity(tmp_path, name, recorded)
    for word in words:
        assert word in caught.value.message
    assert files(tmp_path) == before


def test_adopting_resolves_a_rename_and_a_lost_file(tmp_path: Path) -> None:
    (tmp_path / "host_name").write_text("old\n")
    adopt_identity(tmp_path, "node1", A)
    assert establish_identity(tmp_path, "node1", A).uuid == A
    with pytest.raises(UsageError, match="not a uuid"):
        adopt_identity(tmp_path, "node1", "nonsense")


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="cannot be written"):
        establish_identity(tmp_path / "missing", "node1", None)
    (tmp_path / "host_id").mkdir()
    with pytest.raises(IdentityError, match="cannot be read"):
        establish_identity(tmp_path, "node1", None)


def test_the_cards_of_a_machine_are_those_with_an_address_of_their_maker(tmp_path: Path) -> None:
    def interface(name: str, *, device: bool = True, **files: str) -> Path:
        directory = tmp_path / name
        (directory / "device").mkdir(parents=True) if device else directory.mkdir()
        for file, text in files.items():
            (directory / file).write_text(text + "\n")
        return directory

    interface("eno1", address="52:54:00:00:00:01", addr_assign_type="0")
    bonded = interface("eno2", address="52:54:00:00:00:01", addr_assign_type="3")
    (bonded / "bonding_slave").mkdir()
    (bonded / "bonding_slave" / "perm_hwaddr").write_text("52:54:00:00:00:02\n")
    interface("virbr0", device=False, address="52:54:00:00:00:03", addr_assign_type="0")
    vf = interface("eno1v0", address="52:54:00:00:00:04", addr_assign_type="0")
    (vf / "device" / "physfn").mkdir()
    interface("usb0", address="52:54:00:00:00:05", addr_assign_type="1")
    interface("eno3", address="00:00:00:00:00:00", addr_assign_type="0")
    interface("gone")
    (tmp_path / "bonding_masters").write_text("bond0\n")
    assert network_cards(tmp_path) == {"52:54:00:00:00:01", "52:54:00:00:00:02"}
    assert network_cards(tmp_path / "nowhere") == frozenset()
