"""The experiments, a package each.

``task.py`` is what the engine and the report take from it: ``EXPERIMENT``, ``PRESETS``, ``TABLES`` and ``figures``. The
other files are its data, its model and its training. ``python -m catnat_experiments.tasks.<name>`` trains one run by
hand.
"""
