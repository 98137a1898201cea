"""Means over batches: of sizes that only a call knows, and of what costs nothing."""

import pytest

from tilewright.core.estimates import over_batches
from tilewright.core.expr import Sym


def test_a_batch_that_is_known_costs_what_it_costs() -> None:
    assert over_batches(3, lambda n: 2.0 * n) == 6


def test_a_batch_of_a_call_costs_a_geometric_mean() -> None:
    """Over 1, 2, 4, .. 64; a range leaves out what is outside of it."""
    assert over_batches(Sym("n", 1), float) == pytest.approx(8)
    assert over_batches(Sym("n", 1, 4), float) == pytest.approx(2)


def test_images_without_an_element_cost_nothing() -> None:
    """Random graphs found it: a mean of zeros was an error in the middle of a compile."""
    assert over_batches(Sym("n", 1), lambda n: 0 * n) == 0
