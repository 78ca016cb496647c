"""Claims: parse a request, find where it fits on the host, and keep the book of what is claimed. Pure."""
