"""Runs the stages of an experiment on Ray Tune, keeps records of finished runs, and never computes a run twice."""
