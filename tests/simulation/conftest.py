"""The simulator replaces the thread primitives of Python 3.11 by its own; those of later versions differ."""

import sys

collect_ignore_glob = ["test_*.py"] if sys.version_info >= (3, 12) else []
