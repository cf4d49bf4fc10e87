"""Data sets as arrays, from whatever a person has, and which of their images are held out, forgotten or poisoned."""
