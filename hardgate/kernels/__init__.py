"""How the conditional layer is computed: the definition, dense products, kernels that skip."""
