"""Classifiers with a tree of binary decisions beside multiclass ones: boosters at every node, and linear text models.

Tables of numbers (scikit-learn's digits, and the generator of xgboost#2926 with 120 classes) compare boosters. Two real
taxonomies compare linear models and boosters at every level: the codes of ICD-10-CM, from texts, and the products of a
supermarket, from the rest of a basket. Every method gets the same number of
trials of Optuna, over two dials of its own; the best trial by validation log loss is repeated with other seeds, which
change the split of the rows too, and judged by test rows. Everything runs on one core; seconds are processor time.
"""
