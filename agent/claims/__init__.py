"""Claims: parse a request, find where it fits on the host, and keep the ledger of what is claimed. Pure."""
