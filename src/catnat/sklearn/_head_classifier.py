from catnat.sklearn._prediction import TreePredictor


class HeadClassifier(TreePredictor):
    pass
