"""Small changes of the product's code that a test must notice: drawn by a seed, run side by side."""
