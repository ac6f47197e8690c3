"""`hardgate toy`: one Bernoulli variable, on which estimators are usually shown."""
