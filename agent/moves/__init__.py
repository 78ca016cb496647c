"""Moves: their states, who owns which allocation at each step, and their JSON form. Pure."""
