"""What an operator adds to the providers, in files: nova's provider.yaml."""
