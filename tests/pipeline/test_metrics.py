"""The cost of searches, by hand."""

import pytest

from treeagent.pipeline.collect import stored_cost
from treeagent.pipeline.index import ShardRows, TreeRow
from treeagent.pipeline.metrics import Cost
from treeagent.search.node import Budget


def test_rates_of_a_resumed_search_leave_out_what_was_on_disk() -> None:
    row = TreeRow("t", 0, "base", nodes=9, spread=0.5, accuracy=0.5, best=1.0, told=True, failed=False)
    stored = stored_cost(ShardRows(0, "seal", Budget(simulations=900, generated_tokens=8000), (row,) * 3))
    found = Cost(trees=2, best_value=1.5, budget=Budget(simulations=100, generated_tokens=400))
    metrics = (stored + found).metrics(seconds=10.0)
    assert (metrics["trees"], metrics["simulations"], metrics["generated_tokens"]) == (5, 1000, 8400)
    assert metrics["simulations_per_second"] == pytest.approx(10)
    assert metrics["tokens_per_second"] == pytest.approx(40)
    assert metrics["best_value"] == pytest.approx(0.75)
