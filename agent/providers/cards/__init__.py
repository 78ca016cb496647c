"""Cards that are divided in several sizes: what each size may take, and what still fits. Pure."""
