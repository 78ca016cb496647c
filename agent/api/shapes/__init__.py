"""The shapes of the local API: each is defined once, here, as the type of its JSON.

A shape is a `TypedDict` whose name ends in `Shape`. In `Annotated`, its fields carry a description and
keywords of JSON Schema. The shapes are the types of the views, which build the answers, and of the commands,
which draw them. The schemas of `agent/api/openapi.json` and the samples of `docs/cli.md` are generated from
them. A table of the command line is a tuple of `Column`, beside the shape of its rows.

The command line imports these modules, so they import only the standard library.

To add a column to a table, such as that of `plimsoll instances`:

1. `agent/api/shapes/instances.py`: the `Column`; a new field, if the answer lacks it, with its sample value.
2. `agent/api/views.py`: the value of a new field. mypy names each place that lacks it.
3. `tests/unit/cli/test_instances.py`: what the table shows.
4. `./dev generate`: the samples in `docs/cli.md`, and for a new field the schema in `agent/api/openapi.json`.
"""
