"""Trees over classes, and how to make, save and draw them: NumPy only."""
