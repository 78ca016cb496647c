"""The audit: compares the guests, the claims and Placement, and repairs the differences."""
