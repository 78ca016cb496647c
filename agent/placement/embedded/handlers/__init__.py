"""One function per route and method: read the request, ask the model or run a rule, show the outcome."""
