"""Moves: the state table, who owns what during one, and the steps."""
