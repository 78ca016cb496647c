"""Where things lie in this checkout."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CHECKOUT = TESTS.parent
DOCS = CHECKOUT / "docs"
DATA = TESTS / "data"
