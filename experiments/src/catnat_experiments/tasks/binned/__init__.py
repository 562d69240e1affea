"""Distributional regression: a histogram over ordered bins, by softmax or by a tree, beside other predictions.

Real data that come with scikit-learn (diabetes; the pixels of a photograph, predicted from their neighbours) and
Friedman's function with noise whose spread, or whose shape, depends on the features. All heads of networks share one
body, one optimizer and one schedule, so only the head and its loss differ. Every method gets the same number of trials
of Optuna, over two dials of its own; the best trial by validation CRPS is repeated with other seeds, which change the
split of the rows too, and judged by test rows. Everything runs on one core; seconds are processor time.
"""
