"""A user's own function as a metric: watch it run, record its comparisons, replay it."""
