"""Compares what a flavor asks for with nova's own code (`./dev test-nova`)."""
