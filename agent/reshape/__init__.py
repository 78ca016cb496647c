"""The reshape: its pure plan and laws, its receipts, and the run."""
