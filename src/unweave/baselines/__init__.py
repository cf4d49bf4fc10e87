"""Other ways to forget, with the signature of :func:`unweave.forget`; ``BASELINES`` lists them by name."""

from unweave.baselines.contract import BaselineResult, Method

BASELINES: dict[str, Method] = {}

__all__ = ["BASELINES", "BaselineResult", "Method"]
