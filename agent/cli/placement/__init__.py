"""`plimsoll placement`: serve an embedded Placement, carry the content of one to another, check it."""
