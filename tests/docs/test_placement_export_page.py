"""docs/placement-export.md says what the code does: the example is a document, and every finding is named."""

import ast
import json
import re
from pathlib import Path

from kits.paths import CHECKOUT

from agent.placement import snapshot
from agent.placement.embedded.serve import ROLES, Tokens, TokenUser
from agent.placement.snapshot import from_document, to_document

TEXT = (CHECKOUT / "docs" / "placement-export.md").read_text(encoding="utf-8")


def test_the_example_is_a_document() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    document = json.loads(example)
    assert to_document(from_document(document)) == document


def test_every_finding_is_documented_and_no_other() -> None:
    section = TEXT.partition("## Checking")[2].partition("## ")[0]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))
    calls = ast.walk(ast.parse(Path(snapshot.__file__).read_text(encoding="utf-8")))
    made = {
        call.args[0].value
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "BrokenInvariant"
        and isinstance(call.args[0], ast.Constant)
    }
    assert documented == made | {"unknown_class", "unknown_trait"}
    assert made >= snapshot.ACCEPTED


def test_the_token_file_shown_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"^ {4}# name .*?(?=\n\n)", TEXT, re.DOTALL | re.MULTILINE)
    file = tmp_path / "tokens"
    file.write_text("\n".join(line.strip() for line in example.splitlines()))
    file.chmod(0o600)
    shown = Tokens.read(file)({"HTTP_AUTHORIZATION": "Bearer m1N3o5P7q9R1s3T5u7V9"})
    assert shown == TokenUser("billing", "b1f4", frozenset({"reader"}))
    assert all(f"| `{role}` |" in TEXT for role in ROLES)
