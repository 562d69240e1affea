"""Distributional regression: a histogram over ordered bins, by softmax or by a tree, compared with other predictions.

Two real data sets come with scikit-learn: diabetes, and the pixels of a photograph, predicted from their neighbours.
Two synthetic ones are Friedman's function with noise whose scale or shape depends on the features. All networks have
the same body, optimizer and schedule. They differ in the head, its loss and their dials.

Every method has the same number of Optuna trials over its two dials. The best trial by validation CRPS is repeated with
other seeds, which also change the split of the rows. Final metrics are those of test rows. Everything runs on one core;
seconds are processor time.
"""
