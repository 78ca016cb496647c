"""The handlers: a function for each route and method.

Each reads the request, runs a rule or reads the model, and builds the response.
"""
