"""NUMA: place a guest's cells on host cells, and account for what is in use on them. Pure."""
