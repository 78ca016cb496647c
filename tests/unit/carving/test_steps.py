"""A step survives the journal, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.carving.steps import Step, StepKind, read_step
from agent.errors import UsageError

TEXTS = st.text(max_size=20)


@given(st.builds(Step, st.sampled_from(StepKind), TEXTS, TEXTS, TEXTS, TEXTS))
def test_a_step_comes_back_as_it_was(step: Step) -> None:
    assert read_step(json.loads(json.dumps(step.to_json()))) == step


@pytest.mark.parametrize("value", [None, {}, {"kind": "format"}, {"kind": "vfs", "card": "", "function": 1}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        read_step(value)
