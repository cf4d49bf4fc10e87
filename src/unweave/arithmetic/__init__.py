"""The sums themselves: G += rᵀ r for rows and for the patches of a convolution, by as few products as can be.

``products`` and ``split`` add up rows; ``patches`` says what a convolution sees. Its Gram comes of ``structured``
offsets, with ``correlate`` (``fused`` on a GPU), of ``pixels`` where maps are small, or of the patches: ``routes``
knows the prices. ``small_maps`` runs convolutions themselves as products, where that is quicker in full float32.
"""
