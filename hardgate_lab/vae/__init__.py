"""A Bernoulli VAE trained with one estimator after another: what `hardgate vae` runs."""
