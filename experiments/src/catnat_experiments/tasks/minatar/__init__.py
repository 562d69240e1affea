"""PPO on MinAtar: a search of equal budget for every parameterization, then many seeds.

Beyond the paper, whose games are Atari's: small games let us afford the seeds that tell differences from luck. Train
one configuration by hand::

    catnat-experiments train minatar game=Breakout parameterization=natural

The algorithm is in ``ppo.py``.
"""
