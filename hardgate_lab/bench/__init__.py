"""`hardgate bench`: the conditional layer against dense torch, by time."""
