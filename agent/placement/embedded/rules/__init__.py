"""The rules of writes: pure functions that change a `Draft` or raise `RequestRefused`.

They do no I/O, and of HTTP they use only the table of problems (problems.py).
"""
