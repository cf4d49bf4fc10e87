"""How a model behaves on samples: their margins, how those are spread over a class, and who stands out."""
