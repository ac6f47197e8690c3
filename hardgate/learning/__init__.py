"""Learning from the loss alone: the score term, its records, baselines."""
