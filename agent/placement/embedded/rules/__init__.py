"""What a write may do: pure functions over a `Draft`, which change it or raise `Refused`.

They do no I/O and know no HTTP beyond the table of problems.
"""
