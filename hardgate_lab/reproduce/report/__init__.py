"""`hardgate report`: finished runs as one page that opens from disk, and its figures as PNG."""
