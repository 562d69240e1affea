"""The parameterizations of graph structure learning, and the paper's numbers."""

from __future__ import annotations

from catnat_experiments.report.targets import Target, read_targets

THETAS = (0.1, 0.25, 0.5, 0.75, 0.9)
IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
OPTIMAL = "optimal"
"""The name of a parameterization in configs that has the true theta and W, without learning."""

_METRICS = ("test_es_twice", "pp_mae", "pp_mse", "mae_theta")
_TABLE_2 = read_targets(
    """
0.1  sparsemax    7.467±0.013 0.3842±0.0012*    0.624±0.002  0.0083±0.0012
0.1  softmax      7.450±0.015 0.3844±0.0012*    0.622±0.003  0.0077±0.0003
0.1  sigmoid      7.459±0.018 0.3845±0.0010*    0.623±0.003  0.0090±0.0003
0.1  natural     7.425±0.014* 0.3837±0.0015*   0.617±0.004* 0.0052±0.0003*
0.1  optimal      7.416±0.014  0.3849±0.0009    0.615±0.002
0.25 sparsemax   10.928±0.023  0.8224±0.0007    1.321±0.007  0.0123±0.0011
0.25 softmax     10.882±0.019  0.8224±0.0013    1.312±0.004  0.0083±0.0002
0.25 sigmoid     10.922±0.010  0.8230±0.0014    1.319±0.003  0.0086±0.0005
0.25 natural    10.859±0.012* 0.8201±0.0012*   1.304±0.003* 0.0051±0.0003*
0.25 optimal     10.842±0.014  0.8192±0.0012    1.300±0.003
0.5  sparsemax   15.030±0.030  1.2592±0.0042    2.510±0.020  0.0126±0.0011
0.5  softmax     14.990±0.020  1.2596±0.0015    2.485±0.007  0.0132±0.0008
0.5  sigmoid     15.020±0.015  1.2607±0.0016    2.490±0.007  0.0101±0.0005
0.5  natural    14.937±0.023* 1.2537±0.0019*   2.466±0.007* 0.0061±0.0006*
0.5  optimal     14.926±0.018  1.2523±0.0019    2.462±0.005
0.75 sparsemax   10.979±0.102  0.8278±0.0188    1.343±0.047  0.0137±0.0022
0.75 softmax    10.713±0.096*  0.8044±0.0027    1.278±0.002  0.0146±0.0006
0.75 sigmoid     10.750±0.019  0.8078±0.0020    1.280±0.004  0.0119±0.0004
0.75 natural    10.674±0.012* 0.7969±0.0015*   1.267±0.004* 0.0043±0.0002*
0.75 optimal     10.672±0.017  0.7943±0.0013    1.267±0.003
0.9  sparsemax    7.592±0.136  0.4399±0.0196    0.651±0.044  0.0102±0.0019
0.9  softmax      7.374±0.012  0.4272±0.0013    0.614±0.002  0.0108±0.0003
0.9  sigmoid      7.398±0.017  0.4228±0.0018    0.616±0.003  0.0085±0.0003
0.9  natural     7.340±0.015* 0.3973±0.0015*   0.607±0.003* 0.0023±0.0001*
0.9  optimal      7.342±0.016  0.3839±0.0014    0.611±0.002
""",
    names=2,
)
PAPER: dict[str, dict[float, dict[str, Target]]] = {
    metric: {
        theta: {
            name: row[place]
            for name in (*IN_THE_PAPER, OPTIMAL)
            if place < len(row := _TABLE_2[str(theta), name])  # the optimal error on theta is 0 by definition
        }
        for theta in THETAS
    }
    for place, metric in enumerate(_METRICS)
}
"""The paper's Table 2: metric -> theta* -> parameterization (or "optimal") -> target. Its ES is twice its formula's."""

METRICS = {
    "test_es": "energy score on the test set, by the paper's formula",
    "test_es_twice": "twice that: what the paper's table shows",
    "validation_es": "energy score on the validation set; rates are selected by it",
    "pp_mae": "mean absolute error of the median of 32 predictions",
    "pp_mse": "mean squared error of the mean of 32 predictions",
    "mae_theta": "mean |theta - theta*| over all 576 entries",
    "mae_theta_zero": "the same over the 474 entries that are never there",
    "mae_theta_edge": "the same over the 102 entries that can be there",
    "dead": "fraction of entries that are 0 or 1 for good: certain, and without a gradient",
    "dead_zero": "the same among the 474",
    "dead_edge": "the same among the 102",
}
