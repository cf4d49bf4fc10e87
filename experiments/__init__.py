"""The paper's experiments: its models, data and recipes. Nothing in src/ imports this."""
