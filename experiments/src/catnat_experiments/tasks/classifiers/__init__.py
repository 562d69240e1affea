"""Classifiers with a tree of binary decisions, compared with multiclass ones: boosters and linear text models.

Boosters are compared on two tables of numbers: scikit-learn's digits, and the generator of xgboost#2926 with 120
classes. Linear models and boosters are compared at every level of two real taxonomies. These are the codes of
ICD-10-CM, from texts, and the products of a supermarket, from the rest of a basket.

On tables of numbers every method has the same number of Optuna trials over its two dials. The best trial by validation
log loss is repeated with other seeds. On taxonomies both dials are 0.5, without a search. Seeds also change the split
of the rows. Final metrics are those of test rows. Everything runs on one core; seconds are processor time.
"""
