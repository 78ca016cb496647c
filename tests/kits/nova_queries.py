"""What nova 34's scheduler asks Placement for a flavor of 1 CPU, 512 MiB and 10 GiB.

`./dev test-nova` compares them with what nova's own code builds (tests/parity/test_scheduler_query.py).
"""

_FLAVOR = (
    "/allocation_candidates?limit=1000&resources=DISK_GB%3A10%2CMEMORY_MB%3A512%2CVCPU%3A1&root_required="
)

BEFORE_OWNERS = f"{_FLAVOR}%21COMPUTE_STATUS_DISABLED"
"""While a nova-compute service of a release before 34 runs in one of the cells."""

WITH_OWNERS = f"{_FLAVOR}OWNER_NOVA%2C%21COMPUTE_STATUS_DISABLED"
"""Once all nova-compute services are of nova 34."""

MICROVERSION = "1.36"
