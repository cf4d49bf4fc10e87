"""``python -m unweave``: the command line; under ``torchrun … -m unweave`` on several processes."""

import os
import sys

from unweave.cli.main import main
from unweave.cli.ranks import under_torchrun

if __name__ == "__main__":
    code = main()
    if under_torchrun():
        # Gloo's threads let go of their last tensors when they please, and abort a Python that is being torn down then
        # (pytorch/pytorch#179291). Everything is written by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
