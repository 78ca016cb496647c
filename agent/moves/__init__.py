"""Moves: their states, who owns which allocation at each step, and whether a guest can go live. Pure."""
