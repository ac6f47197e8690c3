"""Everything that trains, times, compares and draws: one room per command of `hardgate`."""
