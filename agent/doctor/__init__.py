"""The doctor: checks of the host, the settings and the running agent, each with a remedy."""
