"""The shapes of the local API: each is defined once, here, as the type of its JSON.

A shape is a `TypedDict` whose name ends in `Shape`. In `Annotated`, its fields carry a description and
keywords of JSON Schema. The shapes are the types of the views, which build the answers, and of the
commands, which draw them. The schemas of `agent/api/openapi.json` are generated from them, and the samples
of `docs/cli.md` are drawn by their columns. A table of the command line is a tuple of `Column`, beside the
shape of its rows.

The command line imports these modules, so they import only the standard library and the ground.

CONTRIBUTING.md has the recipe for a new column.
"""
