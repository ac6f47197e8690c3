"""What every package stands on: arguments, precision, lazy state, averages, processes, files."""
