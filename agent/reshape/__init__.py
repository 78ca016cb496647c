"""The reshape: its plan, its laws, its receipts, and how records follow it; agent.reconcile runs it. Pure."""
