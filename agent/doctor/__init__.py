"""The doctor: what keeps an agent from working on this host, each with its remedy."""
