"""The audit: the three truths, judged (pure), and the run."""
