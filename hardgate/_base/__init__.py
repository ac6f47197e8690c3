"""What every package builds on: arguments, precision, state, averages, distribution, files."""
