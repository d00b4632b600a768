import pytest

from benchmarks.plan import compare_costs
from treeagent.contrib.plan.cost import StageCost


def test_ratios_are_of_what_both_sides_know() -> None:
    planned = {
        "search": StageCost("search", generated_tokens=100, environment_steps=30, seconds=10),
        "updates": StageCost("updates", generated_tokens=500, trained_tokens=900, seconds=5),
    }
    took = {
        "search": StageCost("search", generated_tokens=80, environment_steps=30, seconds=6),
        "updates": StageCost("updates", trained_tokens=600, seconds=6),
        "evaluation": StageCost("evaluation", seconds=1),
    }
    found = compare_costs(planned, took)
    assert found["generated_tokens ratio"] == pytest.approx(1.25)
    assert found["environment_steps ratio"] == 1
    assert found["seconds ratio"] == pytest.approx(15 / 12)
    assert "trained_tokens ratio" not in found
    assert found["search seconds taken"] == 6
