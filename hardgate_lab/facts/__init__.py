"""`hardgate facts`: the units, the estimators and their declared facts."""
