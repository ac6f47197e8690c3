"""`hardgate sweep`: search the settings that the paper left open, on validation."""
