"""Speed, memory and scale, measured, from a checkout: ``unweave bench``, or ``python -m benchmarks.NAME`` at its root.

Nothing in src/ imports this.
"""
