"""What tuning tries for every baseline: up to six settings each, the method's authors' own first."""

from __future__ import annotations

from typing import Any

TRIALS: dict[str, list[dict[str, Any]]] = {}
