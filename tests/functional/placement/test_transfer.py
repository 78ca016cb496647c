"""A placement's content is read, carried whole into the other kind, removed, also with outages in between."""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest
from hypothesis import given, settings
from kits.contents import consumer_uuid, contents, fresh_core, provider_uuid, small
from kits.examples import examples
from kits.outage import Outage
from kits.placements import OpenStack, Placement
from kits.served_core_client import make_certificate
from kits.tracker import fast_directory
from kits.wire import Sent, Wire

from agent.cli.main import main
from agent.errors import (
    ApplyError,
    ExitCode,
    ImportRefused,
    PlacementError,
    PlacementUnavailable,
    PlimsollError,
    StateError,
    UsageError,
)
from agent.placement.client import ConsumerAllocations
from agent.placement.connect import open_transport
from agent.placement.embedded import Core
from agent.placement.embedded.model import Draft
from agent.placement.embedded.serve import Server
from agent.placement.embedded.store import SqliteHome, Store
from agent.placement.snapshot import (
    PlacementSnapshot,
    broken_invariants,
    differences,
    foreign_consumers,
    to_text,
)
from agent.placement.transfer import (
    UNTYPED_MICROVERSION,
    SnapshotClient,
    apply_import,
    apply_removal,
    plan_import,
    plan_removal,
    read_counterpart,
    read_service,
    read_state_dir,
    read_trees,
)
from agent.placement.transport import Reply, SocketTransport, Transport
from agent.tree import Inventory, Provider

HOST, GPU = provider_uuid(0), provider_uuid(1)


def bring(transport: Transport, wanted: PlacementSnapshot, *, overwrite: bool = False) -> PlacementSnapshot:
    """Import, and answer what the target then holds."""
    client = SnapshotClient(transport)
    found, evidence = read_service(client)
    plan = plan_import(wanted, found, evidence.names, overwrite=overwrite)
    apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)
    return read_service(client)[0]


def without_generations(content: PlacementSnapshot) -> PlacementSnapshot:
    return PlacementSnapshot.of(
        content.providers.values(),
        (replace(each, generation=None) for each in content.consumers.values()),
        content.traits,
        content.resource_classes,
    )


@settings(max_examples=20, deadline=None)
@given(contents())
def test_what_is_imported_is_what_is_exported(content: PlacementSnapshot) -> None:
    with fresh_core() as first, fresh_core() as second:
        once = bring(first, content)
        assert without_generations(once) == without_generations(content)
        assert differences(content, once) == ()
        assert to_text(bring(second, once)) == to_text(bring(second, once))
        assert without_generations(read_service(SnapshotClient(second))[0]) == without_generations(content)


@settings(max_examples=10, deadline=None)
@given(contents())
def test_the_file_and_the_api_tell_the_same(content: PlacementSnapshot) -> None:
    with TemporaryDirectory() as directory:
        with closing(open_transport("embedded", state_dir=Path(directory))) as transport:
            bring(transport, content)
            over_api, evidence = read_service(SnapshotClient(transport), with_usages=True)
        in_file, of_file = read_state_dir(Path(directory))
    assert to_text(in_file) == to_text(over_api)
    assert evidence.roots == of_file.roots
    assert (
        broken_invariants(over_api, evidence)
        == broken_invariants(in_file, of_file)
        == broken_invariants(content)
    )


class ReferenceTransport:
    """The real OpenStack Placement, emptied, as a transport."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._request = importlib.import_module("differential.exchange").Request
            self._reference = importlib.import_module("differential.reference").Reference()
        self._one_at_a_time = Lock()  # all threads share the one connection of a database in memory

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        with self._one_at_a_time:
            answer = self._reference.ask(self._request(method, path, body, microversion))
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        """It lives as long as the process."""


needs_openstack = pytest.mark.skipif(
    importlib.util.find_spec("placement") is None, reason="needs openstack-placement"
)


@needs_openstack
@settings(max_examples=6, deadline=None, derandomize=True)
@given(contents())
def test_the_real_placement_takes_it_and_gives_it_back(content: PlacementSnapshot) -> None:
    there = bring(ReferenceTransport(), content)
    assert without_generations(there) == without_generations(content)
    with fresh_core() as back:
        assert without_generations(bring(back, there)) == without_generations(content)


@needs_openstack
def test_what_the_target_holds_besides_stays() -> None:
    openstack = ReferenceTransport()
    other = Provider(provider_uuid(7), "other", None, {"VCPU": Inventory(4)})
    theirs = ConsumerAllocations(consumer_uuid(7), {other.uuid: {"VCPU": 1}}, project_id="x", user_id="y")
    bring(openstack, PlacementSnapshot.of([other], [theirs]))
    both = bring(openstack, small())
    assert both.providers.keys() == {HOST, GPU, other.uuid}
    assert both.consumers[theirs.consumer].allocations == theirs.allocations
    assert foreign_consumers(small(), both) == ()


def test_a_second_import_writes_nothing() -> None:
    with fresh_core() as transport:
        once = bring(transport, small())
        assert plan_import(small(), once, read_service(SnapshotClient(transport))[1].names).empty


class Dying(Wire):
    """Lets so many writes through, and then no request more."""

    def __init__(self, inner: Transport, writes: int) -> None:
        super().__init__(inner)
        self.before = self._count
        self._left = writes

    def _count(self, call: str) -> None:
        self._left -= not call.startswith("GET")
        self.cut |= self._left < 0


def test_an_import_that_was_cut_off_anywhere_is_finished_by_the_next_one() -> None:
    writes = 0
    died = True
    while died:
        with fresh_core() as transport:
            dying = Dying(transport, writes)
            try:
                bring(dying, small())
            except PlimsollError:
                assert dying.cut
            died = dying.cut
            assert without_generations(bring(transport, small())) == without_generations(small())
        writes += 1
    assert writes > 6


def changed(**changes: Any) -> PlacementSnapshot:
    content = small()
    host = replace(content.providers[HOST], **changes)
    return replace(content, providers={**content.providers, HOST: host})


@pytest.mark.parametrize(
    "other",
    [
        changed(name="host2"),
        changed(traits=frozenset({"HW_CPU_X86_AVX2"})),
        changed(aggregates=frozenset({provider_uuid(5)})),
        changed(inventories={"VCPU": Inventory(9), "MEMORY_MB": Inventory(4096)}),
        replace(
            small(),
            consumers={
                consumer_uuid(0): ConsumerAllocations(consumer_uuid(0), {HOST: {"VCPU": 3}}, 1, "p", "u")
            },
        ),
    ],
)
def test_other_content_in_its_place_is_kept_unless_told_otherwise(other: PlacementSnapshot) -> None:
    with fresh_core() as transport:
        before = bring(transport, other)
        with pytest.raises(ImportRefused, match="--overwrite") as refused:
            bring(transport, small())
        assert refused.value.exit_code is ExitCode.REFUSED and refused.value.details["conflicts"]
        assert read_service(SnapshotClient(transport))[0] == before
        after = bring(transport, small(), overwrite=True)
        assert differences(small(), after) == ()


def test_a_name_that_another_provider_has_is_never_taken_away() -> None:
    with fresh_core() as transport:
        holder = Provider(provider_uuid(7), "host1_gpu")
        bring(transport, PlacementSnapshot.of([holder], []))
        with pytest.raises(ImportRefused, match="host1_gpu is"):
            bring(transport, small(), overwrite=True)


def test_standard_names_that_the_target_does_not_know_are_listed() -> None:
    with pytest.raises(ImportRefused, match="HW_CPU_X86_AVX2"):
        plan_import(small(), PlacementSnapshot(), frozenset({"VCPU", "MEMORY_MB", "VGPU"}))


def test_a_broken_document_is_not_imported() -> None:
    orphan = ConsumerAllocations(consumer_uuid(3), {provider_uuid(9): {"VCPU": 1}})
    with fresh_core() as transport, pytest.raises(UsageError, match="broken in 1 place,"):
        bring(transport, PlacementSnapshot.of([], [orphan]))


def test_a_placement_that_is_written_to_all_the_time_is_not_exported() -> None:
    with fresh_core() as transport:
        bring(transport, small())

        def write(sent: Sent) -> None:
            if sent.path.endswith("/usages") or "aggregates" in sent.path:
                read = Sent("GET", f"/resource_providers/{HOST}/inventories", None, sent.microversion)
                read._replace(method="PUT", body=read.to(transport).body).to(transport)

        with pytest.raises(PlacementError, match="attempts to read it"):
            read_service(SnapshotClient(Wire(transport, write)))


def test_a_provider_that_goes_while_it_is_read_is_read_around() -> None:
    with fresh_core() as transport:
        spare = Provider(provider_uuid(5), "spare")
        bring(transport, small())
        bring(transport, PlacementSnapshot.of([spare], []))
        going = Wire(transport)
        gone = Sent("DELETE", f"/resource_providers/{spare.uuid}", None, "1.39")
        going.once("GET /resource_providers", lambda: gone.to(transport), after=True)
        content, _ = read_service(SnapshotClient(going), with_usages=True)
        assert content.providers.keys() == {HOST, GPU}


def old(inner: Transport) -> Wire:
    """The way to an embedded core that speaks 1.37 at most, as a release before consumer types does."""

    def answer(sent: Sent) -> Reply | None:
        if int(sent.microversion.partition(".")[2]) > 37:
            return Reply(406, {"errors": [{"status": 406}]})
        reply = sent.to(inner)
        if sent.path == "/":
            reply.body["versions"][0]["max_version"] = "1.37"
        return reply

    return Wire(inner, answer)


def test_a_target_without_consumer_types_takes_all_but_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "host1.json"
    document.write_text(to_text(small()))
    monkeypatch.setattr(
        "agent.placement.connect.open_transport", lambda *a, **k: old(open_transport(*a, **k))
    )
    for _ in range(2):
        code, out, err = run(capsys, "import", str(document), "--state-dir", str(tmp_path / "old"))
        assert (code, err) == (0, "") and "says what the document says" in out


def test_a_state_directory_in_use_says_by_whom(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path)), pytest.raises(StateError, match="in use by process"):
        read_state_dir(tmp_path)


def test_a_directory_without_a_placement_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no placement database"):
        read_state_dir(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def change(uuid: str, **fields: Any) -> Callable[[Draft], None]:
    """What no request may do to a provider."""

    def rule(draft: Draft) -> None:
        provider = draft.provider(uuid)
        assert provider is not None
        draft.put_provider(provider._replace(**fields))

    return rule


def empty_consumer(draft: Draft) -> None:
    consumer = draft.consumers_of(GPU)[0]
    draft.put_consumer(consumer.uuid, consumer._replace(allocations={}))


DAMAGES: dict[str, Callable[[Draft], None]] = {
    "missing_parent": change(GPU, parent_uuid=provider_uuid(9)),
    "cycle": change(HOST, parent_uuid=GPU),
    "wrong_root": change(GPU, root_uuid=GPU),
    "orphan_allocation": lambda draft: draft.drop_provider(GPU),
    "no_inventory": change(GPU, inventories={}),
    "empty_consumer": empty_consumer,
    "unknown_trait": change(GPU, traits=frozenset({"CUSTOM_LOST"})),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_done_to_the_file_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with closing(open_transport("embedded", state_dir=tmp_path)) as transport:
        bring(transport, small())
    with closing(Store(SqliteHome.at(tmp_path))) as store:
        store.write(DAMAGES[name])
    code, out, _ = run(capsys, "check", "--state-dir", str(tmp_path), "-o", "json")
    assert code == ExitCode.DRIFT_FOUND
    assert name in {each["name"] for each in json.loads(out)["findings"]}


def test_a_file_that_is_no_database_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "placement.db").write_bytes(b"not a database, but long enough to look at" * 100)
    code, _, err = run(capsys, "check", "--state-dir", str(tmp_path))
    assert code == ExitCode.FAILED and "is damaged" in err


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["placement", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_from_one_placement_to_another_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "host1.json"
    document.write_text(to_text(small()))
    first = ("--state-dir", str(tmp_path / "first"))
    assert run(capsys, "import", str(document), *first, "--dry-run")[0] == ExitCode.DRIFT_FOUND
    code, out, _ = run(capsys, "import", str(document), *first)
    assert code == 0 and "says what the document says" in out
    assert run(capsys, "check", *first)[0] == 0
    exported = json.loads(run(capsys, "export", *first)[1])
    assert [each["name"] for each in exported["resource_providers"]] == ["host1", "host1_gpu"]
    with (
        closing(Core.open(tmp_path / "second")) as core,
        Server(core, [f"unix:{tmp_path}/s", "127.0.0.1:0"]) as server,
    ):
        urls = (server.addresses[0], f"http://{server.addresses[1]}")
        for index, url in enumerate(urls):
            code, out, _ = run(capsys, "import", str(document), "--url", url, "-o", "json")
            assert code == 0 and json.loads(out)["written"]["consumers"] == 1 - index
        over_socket, over_tcp = (run(capsys, "export", "--url", url)[1] for url in urls)
        assert over_socket == over_tcp
        code, _, err = run(capsys, "check", "--state-dir", str(tmp_path / "second"))
        assert code == ExitCode.FAILED and f"--url {urls[0]} instead" in err
        assert run(capsys, "export", "--url", urls[0], str(tmp_path / "again.json"))[0] == 0
    assert run(capsys, "check", str(tmp_path / "again.json"))[0] == 0


def test_over_tls_with_a_token_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, tokens, document = tmp_path / "token", tmp_path / "tokens", tmp_path / "host1.json"
    token.write_text("a-token-of-24-characters\n")
    tokens.write_text("ops admin a-token-of-24-characters\n")
    tokens.chmod(0o600)
    document.write_text(to_text(small()))
    certificate, key = make_certificate(tmp_path)
    with (
        closing(Core.open(tmp_path / "state")) as core,
        Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server,
    ):
        url = "https://" + server.addresses[0].replace("0.0.0.0", "127.0.0.1")
        known = ("--url", url, "--cafile", str(certificate))
        assert run(capsys, "import", str(document), *known, "--token-file", str(token))[0] == 0
        code, _, err = run(capsys, "export", *known)
        assert code == ExitCode.FAILED and "needs a valid token" in err and "401" in err
        code, _, err = run(capsys, "export", "--url", url, "--token-file", str(token))
        assert code == ExitCode.FAILED and "certificate" in err.lower()


def test_check_prints_each_finding_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "broken.json"
    host = small().providers[HOST]
    overdrawn = replace(host, inventories={**host.inventories, "VCPU": Inventory(1)})
    document.write_text(to_text(replace(small(), providers={**small().providers, HOST: overdrawn})))
    code, out, _ = run(capsys, "check", str(document))
    assert code == ExitCode.DRIFT_FOUND
    assert "over_capacity: Provider host1" in out and "Move or release consumers" in out
    code, out, _ = run(capsys, "check", str(document), "-o", "json")
    assert [each["name"] for each in json.loads(out)["findings"]] == ["over_capacity"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export"], "Say which Placement"),
        (["check", "--state-dir", "a", "--url", "unix:/b"], "Say which Placement"),
        (["check", "file", "--url", "unix:/b"], "not both"),
        (["export", "--url", "ftp://x"], "--url takes"),
        (["export", "--url", "unix:/no/such"], "Check that it is served there"),
        (["import", "/no/such", "--url", "unix:/b"], "No such file"),
        (["import", "/dev/null", "--url", "unix:/b"], "no export document"),
        (["check", "/bin/sh"], "not UTF-8"),
        (["export", "--url", "unix:/b", "--token-file", "/no/such"], "No such file"),
        (["serve", "--bind", "0.0.0.0:1", "--state-dir", "/tmp/never-made"], "Refusing to listen"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code != 0 and out == ""
    assert said in err and err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Core.open(tmp_path).close()
    code, _, err = run(capsys, "export", "--state-dir", str(tmp_path), str(tmp_path / "no" / "such.json"))
    assert code == ExitCode.FAILED and "such.json cannot be written: No such file" in err


def test_a_socket_that_refuses_the_caller_is_told_as_it_is(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path / "state")) as core, Server(core, [f"unix:{tmp_path}/s"]):
        client = SnapshotClient(SocketTransport(tmp_path / "s", token="nobody"))
        with pytest.raises(PlacementError, match="do not allow"):
            read_service(client)


SERVED_HOST, NEIGHBOUR = (Provider(provider_uuid(n), name) for n, name in enumerate(("host", "neighbour")))
CONSUMER = ConsumerAllocations(consumer_uuid(0), {SERVED_HOST.uuid: {"VCPU": 1}, NEIGHBOUR.uuid: {"VCPU": 2}})


@pytest.fixture
def client(placement: Placement, tmp_path: Path) -> Iterator[SnapshotClient]:
    with closing(placement.anew(tmp_path).transport()) as transport:
        client = SnapshotClient(transport)
        for provider in (SERVED_HOST, NEIGHBOUR):
            client.create_provider(provider)
            client.put_inventories(provider.uuid, 0, {"VCPU": Inventory(4)})
        client.write_allocations(CONSUMER)
        yield client


def test_some_trees_come_with_their_consumers_and_others_without_contents(client: SnapshotClient) -> None:
    snapshot = read_trees(client, ["host", "none"])
    assert snapshot.providers[SERVED_HOST.uuid].inventories == {"VCPU": Inventory(4)}
    assert snapshot.providers[NEIGHBOUR.uuid].inventories == {}
    assert snapshot.consumers[CONSUMER.consumer] == replace(CONSUMER, generation=1)


def test_the_counterpart_of_a_document_has_the_holders_of_its_names(client: SnapshotClient) -> None:
    twin = Provider(provider_uuid(9), "neighbour")
    snapshot, evidence = read_counterpart(client, PlacementSnapshot.of([twin], []))
    assert set(snapshot.providers) == {NEIGHBOUR.uuid} and not snapshot.consumers
    assert "VCPU" in evidence.names


def test_the_whole_service_with_what_providers_show(client: SnapshotClient) -> None:
    snapshot, evidence = read_service(client, with_usages=True)
    assert set(snapshot.providers) == {SERVED_HOST.uuid, NEIGHBOUR.uuid}
    assert (
        evidence.usages[SERVED_HOST.uuid] == {"VCPU": 1}
        and evidence.roots[SERVED_HOST.uuid] == SERVED_HOST.uuid
    )
    assert evidence.held[NEIGHBOUR.uuid] == {CONSUMER.consumer: {"VCPU": 2}}
    assert client.has_consumer_types()


def test_a_state_directory_must_have_a_database_that_does_not_run(tmp_path: Path) -> None:
    from agent.placement.embedded import Core

    with pytest.raises(UsageError, match="no placement database"):
        read_state_dir(tmp_path)
    with closing(Core.open(tmp_path)), pytest.raises(StateError, match="in use by"):
        read_state_dir(tmp_path)
    assert read_state_dir(tmp_path)[0].providers == {}


class Watched(Wire):
    """Calls `looks` after each write; `refuses` paths like a service that keeps them from us."""

    def __init__(self, inner: Transport, looks: Callable[[], None], refuses: str = "-") -> None:
        detail = {"status": 403, "detail": "placement:reshaper is not allowed"}
        super().__init__(
            inner, lambda sent: Reply(403, {"errors": [detail]}) if sent.path == refuses else None
        )
        self.after = self._written
        self._looks = looks
        self.writes: list[str] = []

    def _written(self, call: str) -> None:
        if not call.startswith("GET"):
            self.writes.append(call)
            self._looks()


def free(content: PlacementSnapshot) -> dict[tuple[str, str], int]:
    """{(provider, class): how much a scheduler could still give}"""
    used = content.usages()
    return {
        (uuid, name): max(0, inventory.capacity - used.get(uuid, {}).get(name, 0))
        for uuid, provider in content.providers.items()
        for name, inventory in provider.inventories.items()
    }


def watch(target: Transport, wanted: PlacementSnapshot) -> Watched:
    """Fails where more is offered at some moment than shall be free at the end."""
    at_the_end = free(wanted)

    def looks() -> None:
        now, _ = read_service(SnapshotClient(target))
        for slot, amount in free(now).items():
            assert amount <= at_the_end[slot], (watched.writes[-1], slot)
        for consumer in now.consumers.values():
            assert consumer.allocations == wanted.consumers[consumer.consumer].allocations

    watched = Watched(target, looks)
    return watched


@settings(max_examples=examples(25), deadline=None)
@given(contents())
def test_nothing_that_is_held_is_ever_offered(content: PlacementSnapshot) -> None:
    with fresh_core() as target:
        bring(watch(target, content), content)
        assert differences(content, read_service(SnapshotClient(target))[0]) == ()


@settings(max_examples=examples(2), deadline=None, derandomize=True)
@given(contents())
def test_nor_on_openstack_placement(openstack: OpenStack, content: PlacementSnapshot) -> None:
    openstack.empty()
    with closing(openstack.transport()) as target:
        bring(watch(target, content), content)
        assert differences(content, read_service(SnapshotClient(target))[0]) == ()


@settings(max_examples=examples(6), deadline=None)
@given(contents())
def test_nor_when_it_is_cut_off_after_any_write_and_begun_again(content: PlacementSnapshot) -> None:
    number, died = 0, True
    while died:
        number += 1
        with fresh_core() as target:
            watched = watch(target, content)
            died = _dies(watched, number, content)
            bring(watched, content)
            assert differences(content, read_service(SnapshotClient(target))[0]) == ()


class Death(PlimsollError):
    """The importing process is gone."""


def _dies(watched: Watched, number: int, content: PlacementSnapshot) -> bool:
    def looks() -> None:
        if len(dying.writes) == number:
            raise Death("gone")

    dying = Watched(watched, looks)
    try:
        bring(dying, content)
    except PlimsollError:
        assert len(dying.writes) == number
        return True
    return False


def test_a_consumer_comes_in_the_request_that_brings_its_inventory() -> None:
    with fresh_core() as target:
        watched = watch(target, small())
        bring(watched, small())
    assert watched.writes.count("POST /reshaper") == 1
    assert watched.writes[-1].startswith("PUT /resource_providers/")
    assert not any("/allocations" in each for each in watched.writes)


@pytest.mark.parametrize("kind", ["embedded", "openstack"])
def test_without_the_role_to_reshape_it_is_written_all_the_same(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with fresh_core() as core:
        target = core
        if kind == "openstack":
            openstack: OpenStack = request.getfixturevalue("openstack")
            openstack.empty()
            target = openstack.transport()
        with closing(target):
            bring(Watched(target, lambda: None, refuses="/reshaper"), small())
            assert differences(small(), read_service(SnapshotClient(target))[0]) == ()


REQUESTS_MAX = 100


def bring_small(transport: Transport) -> None:
    bring(transport, small())


def take(transport: Transport) -> None:
    client = SnapshotClient(transport)
    apply_removal(client, plan_removal(small(), read_service(client)[0]))


def brought(transport: Transport) -> bool:
    return differences(small(), read_service(SnapshotClient(transport))[0]) == ()


def taken(transport: Transport) -> bool:
    found = read_service(SnapshotClient(transport))[0]
    return not found.providers and not found.consumers


@contextmanager
def target(placement: Placement, operation: Callable[[Transport], None]) -> Iterator[Transport]:
    with fast_directory() as directory, closing(placement.anew(Path(directory)).transport()) as transport:
        if operation is take:
            bring(transport, small())
        yield transport


@pytest.mark.parametrize("after", [False, True], ids=["before a request", "after a request"])
@pytest.mark.parametrize(
    ("operation", "done"),
    [(bring_small, brought), (take, taken)],
    ids=["import", "remove"],
)
def test_pulled_at_each_step(
    any_placement: Placement,
    operation: Callable[[Transport], None],
    done: Callable[[Transport], bool],
    after: bool,
) -> None:
    for number in range(1, REQUESTS_MAX):
        with target(any_placement, operation) as transport:
            outage = Outage(any_placement, number, after=after)
            wire = Wire(transport)
            outage.listen(wire)
            try:
                operation(wire)
            except (ApplyError, PlacementUnavailable):
                assert outage.begun
            finally:
                outage.end()
            operation(transport)
            assert done(transport)
        if not outage.begun:
            assert number > 1
            return
    raise AssertionError(f"it makes more than {REQUESTS_MAX} requests")
