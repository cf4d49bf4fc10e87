"""The demonstration: a small network on real images learns, forgets samples, a class and poison, and is compared."""
