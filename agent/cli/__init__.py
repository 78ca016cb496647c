"""The command line: thin, and of the standard library only on the way to a running agent."""
