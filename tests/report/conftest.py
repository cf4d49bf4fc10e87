"""Pages that several tests look at, rendered once."""

from __future__ import annotations

import pytest
import sample_audit

from unweave import report


@pytest.fixture(scope="session")
def full_page() -> str:
    return report.render(sample_audit.full())


@pytest.fixture(scope="session")
def comparison_page() -> str:
    results = [sample_audit.full(outcome, seed) for seed, outcome in enumerate(sample_audit.OUTCOMES)]
    return report.render_comparison(results, ["match", "paper", "noise </script><b>"])
