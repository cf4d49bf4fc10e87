"""What an experiment is run with: jobs, the folder they are kept in, and what is read off a network."""
