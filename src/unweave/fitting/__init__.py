"""The pass of ``fit``: hooks that read what each weight sees, and sums that grow and can go on after a crash."""
