"""The laws hold in the histories of two hundred seeds, and a seed tells the same history each time."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from typing import Any
from unittest.mock import patch

import pytest
from kits.paths import TESTS

from simulation.network import Network
from simulation.seeds import draw, tell
from simulation.story import SENTENCES, Step, Story

SEEDS = 200
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_law_is_broken(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = tell(draw(seed))
        assert not outcome.law, f"{outcome.report}\n\n./dev simulate --seed {seed} tells it shorter"


def digest(seed: int) -> str:
    """Of all that happened in this seed's history, and of each request in its order."""
    requests: list[str] = []
    do = Network.do

    def listed(network: Network, author: str, method: str, path: str, *rest: Any) -> Any:
        requests.append(f"{author} {method} {path}")
        return do(network, author, method, path, *rest)

    with patch.object(Network, "do", listed):
        told = tell(draw(seed)).told
    return sha256("\n".join([*told, *requests]).encode()).hexdigest()


def test_a_seed_replays_exactly_whatever_the_hashes_are() -> None:
    seeds = (3, 11, 28, 406, 433)
    program = f"from simulation.test_seeds import digest\nfor seed in {seeds}: print(digest(seed))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert printed == {"".join(f"{digest(seed)}\n" for seed in seeds)}


def test_a_history_is_printed_in_sentences() -> None:
    text = str(draw(5))
    assert text.startswith("hosts a") and "  1. " in text
    assert "{" not in text and "Step(" not in text


def test_each_verb_has_a_sentence() -> None:
    assert all(callable(getattr(Story, verb)) for verb in SENTENCES)
    verbs = {step.verb for seed in range(300) for step in draw(seed).steps}
    assert verbs <= SENTENCES.keys()
    assert str(Step("claims", ("a", "web1"), (("VCPU", 1),))) == "host a is asked to claim 1 VCPU for web1"
