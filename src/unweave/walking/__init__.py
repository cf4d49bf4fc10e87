"""The walk of a request: projected steps or solved ones, looks at where they led, and the landing."""
