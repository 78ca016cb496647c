"""The command line: it asks the local API and shows the answer. No rule of the agent lives here.

On the way to an answer it imports only the standard library, so `plimsoll status` starts fast. A function
that needs more imports it itself.

To add a command, for example `plimsoll lost`:

1. In the file of its subject, here `agent/cli/status.py`: `add_lost_command` with its grammar and help, and
   the function that it runs.
2. `agent/cli/commands.py`: `add_lost_command` in `COMMANDS`.
3. `tests/functional/cli/test_status.py`: what the command prints, and its exit codes.
4. `docs/cli.md`: its options, if it has any; `./dev generate` adds it to the table of commands.
5. If the API lacks the answer: its shape in `agent/api/shapes/`, and the route in `agent/api/routes.py`,
   which builds it; `./dev generate` writes the rest.
"""
