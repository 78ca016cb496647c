"""A file with Placement's tree and its allocations, so that a restart need not read all of Placement.

The file may be lost, and by itself it proves nothing: Placement raises a provider's generation with each
write of its inventories, traits, aggregates or allocations, and the agent reads again what has another
generation by then. The file is an export document (docs/placement-export.md) with the name of its Placement.
"""

import json
from pathlib import Path

from agent import log
from agent.durable.files import write_atomically
from agent.errors import UsageError
from agent.json_checks import read_object
from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.snapshot import PlacementSnapshot, from_document, to_document
from agent.shapes import Amounts, Held
from agent.tree import ProviderTree

LOG = log.get(__name__)

CACHE_FILE = "placement_seen.json"


class TreeCache:
    """The file in `state_path`; one of another Placement than `home`, in words, is ignored."""

    def __init__(self, state_path: Path, home: str) -> None:
        self._file = state_path / CACHE_FILE
        self._home = home
        self._text = ""
        self._failure_logged = False

    def load(self) -> tuple[ProviderTree, Held]:
        """The tree with its generations, and the allocations as of those; both empty where unknown."""
        try:
            text = self._file.read_text(encoding="utf-8")
            document = read_object(json.loads(text), CACHE_FILE, ("place", "content"))
            snapshot = from_document(document.get("content"))
            if document.get("place") != self._home:
                return ProviderTree(), {}
            tree = ProviderTree(snapshot.providers.values())
        except FileNotFoundError:
            return ProviderTree(), {}
        except (OSError, ValueError, RecursionError, UsageError) as error:
            LOG.warning(
                "%s cannot be used (%s): the agent reads all of Placement, as at a first start.",
                self._file,
                error,
            )
            return ProviderTree(), {}
        self._text = text
        return tree, _by_provider(snapshot)

    def save(self, tree: ProviderTree, held: Held) -> None:
        """Write the file if its content has changed. A failure is logged once; it only costs reads."""
        snapshot = PlacementSnapshot.of(tree, _by_consumer(held))
        text = json.dumps({"place": self._home, "content": to_document(snapshot)}) + "\n"
        if text == self._text:
            return
        try:
            write_atomically(self._file, text)
        except OSError as error:
            if not self._failure_logged:
                LOG.warning(
                    "%s cannot be written (%s): the next start reads more from Placement.", self._file, error
                )
            self._failure_logged = True
        else:
            self._text, self._failure_logged = text, False


def _by_provider(snapshot: PlacementSnapshot) -> Held:
    held: dict[str, dict[str, Amounts]] = {}
    for consumer in snapshot.consumers.values():
        for provider, amounts in consumer.allocations.items():
            held.setdefault(provider, {})[consumer.consumer] = amounts
    return held


def _by_consumer(held: Held) -> list[ConsumerAllocations]:
    by_consumer: dict[str, dict[str, Amounts]] = {}
    for provider, holders in held.items():
        for consumer, amounts in holders.items():
            by_consumer.setdefault(consumer, {})[provider] = amounts
    return [ConsumerAllocations(consumer, allocations) for consumer, allocations in by_consumer.items()]
