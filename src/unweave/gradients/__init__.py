"""Gradients of single samples, and the products of them that solving and NTK need, without holding them."""
