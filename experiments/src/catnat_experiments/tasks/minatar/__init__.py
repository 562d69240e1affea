"""PPO on MinAtar: a search of equal budget for every parameterization, then many seeds.

The paper's games are Atari's. These small games are an addition: they are fast enough for many seeds, which show
smaller differences. Train one configuration by hand::

    catnat-experiments train minatar game=Breakout parameterization=natural

The algorithm is in ``ppo.py``.
"""
