"""Proximal policy optimization (PPO) on Atari's Breakout and Seaquest, the paper's two games.

A convolutional network maps the last four frames of a game to the scores of a policy and the value of the state. It is
trained on eight or more parallel games that it plays itself. The experiment compares maps from scores to probabilities
of actions. Breakout has 4 actions, Seaquest 18.

Run one configuration by hand::

    catnat-experiments train atari game=breakout parameterization=natural steps=500000

Algorithm, network, hyperparameters and preprocessing follow CleanRL's PPO for Atari, on which the paper builds.
:class:`Games` lists the differences in preprocessing. The value loss is clipped as in CleanRL; the paper's formula is
not. Our own choices: catnat has K - 1 scores; the metric is the mean return of the last 50 games; the search has seed
0 and the final runs other seeds.

**Interrupted runs.** A checkpoint contains weights, optimizer, random numbers and counters, bit for bit. It does not
contain the games in progress, because ALE's vector environment gives no access to its emulators. So a resumed run
starts new games. Its curve continues, but its results differ from those of an uninterrupted run.
"""
