"""`hardgate compare`: every gradient estimator against the exact gradient."""
