"""The kernels themselves, in Numba and LLVM; importing this compiles nothing."""
