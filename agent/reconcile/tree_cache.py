"""What placement was last seen to hold of this host, kept in a file: a restart need not read it all again.

It may be lost, and proves nothing by itself: placement raises a provider's generation when inventories,
traits, aggregates or allocations are written, and what has another generation by then is read again. It is an
export document (docs/placement-export.md) beside the name of the placement that said it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from agent import log
from agent.durable.files import write_atomically
from agent.errors import UsageError
from agent.json_checks import read_object
from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.document import from_document, to_document
from agent.placement.transfer.snapshot import PlacementSnapshot
from agent.shapes import Held
from agent.tree import ProviderTree

LOG = log.get(__name__)

SEEN_FILE = "placement_seen.json"


class TreeCache:
    """The file in `state_path`; `place` is the placement, in words, that it must be from."""

    def __init__(self, state_path: Path, place: str) -> None:
        self._file = state_path / SEEN_FILE
        self._place = place
        self._text = ""
        self._told = False

    def load(self) -> tuple[ProviderTree, Held]:
        """The tree with its generations, and who held what at those; nothing where that is not known."""
        try:
            text = self._file.read_text(encoding="utf-8")
            said = read_object(json.loads(text), SEEN_FILE, ("place", "content"))
            content = from_document(said.get("content"))
            if said.get("place") != self._place:
                return ProviderTree(), {}
            tree = ProviderTree(content.providers.values())
        except FileNotFoundError:
            return ProviderTree(), {}
        except (OSError, ValueError, RecursionError, UsageError) as error:
            LOG.warning("%s is of no use (%s): placement is read as at a first start.", self._file, error)
            return ProviderTree(), {}
        self._text = text
        return tree, _by_provider(content)

    def save(self, tree: ProviderTree, held: Held) -> None:
        """Keep it, if it is news. Where it cannot be written the next start reads more, and that is all."""
        content = PlacementSnapshot.of(tree, _by_consumer(held))
        text = json.dumps({"place": self._place, "content": to_document(content)}) + "\n"
        if text == self._text:
            return
        try:
            write_atomically(self._file, text)
        except OSError as error:
            if not self._told:
                LOG.warning("%s was not written (%s): the next start asks placement more.", self._file, error)
            self._told = True
        else:
            self._text, self._told = text, False


def _by_provider(content: PlacementSnapshot) -> Held:
    held: dict[str, dict[str, Mapping[str, int]]] = {}
    for consumer in content.consumers.values():
        for provider, amounts in consumer.allocations.items():
            held.setdefault(provider, {})[consumer.consumer] = amounts
    return held


def _by_consumer(held: Held) -> list[ConsumerAllocations]:
    allocations: dict[str, dict[str, Mapping[str, int]]] = {}
    for provider, consumers in held.items():
        for consumer, amounts in consumers.items():
            allocations.setdefault(consumer, {})[provider] = amounts
    return [ConsumerAllocations(consumer, each) for consumer, each in allocations.items()]
