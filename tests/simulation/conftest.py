"""The simulator replaces the thread primitives of Python 3.11 by its own, and those of 3.12 and later differ."""

import sys

collect_ignore_glob = ["test_*.py"] if sys.version_info >= (3, 12) else []
