"""The paper's networks, and how they are trained: quickly, several at once, and on after an interruption."""
