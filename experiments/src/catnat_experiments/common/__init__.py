"""Shared parts of experiments: parameterizations, data, selection of learning rates."""
