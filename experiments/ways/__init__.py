"""The ways to forget that the tables compare, the jobs that apply them, and how the settings of each were found."""
