"""The paper's experiment: data, settings, training, table and report."""
