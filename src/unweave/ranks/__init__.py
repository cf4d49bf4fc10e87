"""Several processes: who has which samples, models that are spread over them, and what they found put together."""
