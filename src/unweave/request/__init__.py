"""Around the walk of a request: what is asked for and refused, which classes are left, and what to tell of the end."""
