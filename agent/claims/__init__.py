"""Claims: what is asked for, where it fits, and the claim's life."""
