"""Long runs, `make soak`: the same engines as the tests, for longer. SOAK_ROUNDS shortens or lengthens them."""
