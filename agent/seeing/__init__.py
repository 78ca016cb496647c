"""What the agent shows of itself: metrics, health, the overview behind `plimsoll top` and the status page."""
