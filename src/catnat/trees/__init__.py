"""Trees over classes, and functions to build, save and draw them, in NumPy only."""
