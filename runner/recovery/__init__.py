"""Recovery layers: each hands out a `Life` to the training function and mends what it can."""
