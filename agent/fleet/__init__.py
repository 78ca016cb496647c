"""The questions that concern all hosts of one Placement: where a request fits, and why not."""
