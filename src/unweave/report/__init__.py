"""One JSON of an audit → one HTML page that a person can read, print and keep.

Nothing here needs PyTorch: a page can be made on a machine that has never seen the model.
"""

from unweave.report.compare import render_comparison
from unweave.report.document import read
from unweave.report.files import place, require_place
from unweave.report.single import render, write

__all__ = ["place", "read", "render", "render_comparison", "require_place", "write"]
