"""Proximal policy optimization (PPO) on Atari's Breakout and Seaquest, the paper's two games.

A convolutional network sees the last four frames of a game and gives the scores of a policy and the value of the state.
It learns from eight or more games side by side, played with its own actions. What is compared is how scores become the
probabilities of actions. Breakout has 4 actions, Seaquest 18.

Run one configuration by hand::

    catnat-experiments train atari game=breakout parameterization=natural steps=500000

Algorithm, network and hyperparameters follow CleanRL's PPO for Atari, on which the paper builds, and so does what the
agent sees of a game: :class:`Games` says where it differs. The value loss is clipped as there; the paper's formula is
not. Our own choices: catnat has K - 1 scores; the metric is the mean return of the last 50 games; the search has seed
0, final runs have other seeds.

**Interrupted runs.** A checkpoint keeps weights, optimizer, random numbers and counters, bit for bit. It cannot keep
the games under way, because ALE's vector environment gives no access to its emulators. So a run that goes on begins new
games: its curve joins, but its numbers are not those of a run that nothing happened to.
"""
