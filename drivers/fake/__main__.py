"""Print the table of keys that docs/drivers.md has: `python -m drivers.fake`."""

import sys

from drivers.fake.host_file import key_table

sys.stdout.write(key_table())
