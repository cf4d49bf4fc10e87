"""One module per kind of chart; each function returns a figure, or None where its data is not there."""
