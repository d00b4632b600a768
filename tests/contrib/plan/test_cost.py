from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.config import RunConfig, load_config
from treeagent.contrib.plan.cost import (
    Affine,
    Device,
    ModelSize,
    PlayRate,
    Rates,
    Shape,
    TrainRate,
    fitting,
    hours_and_price,
    makespan,
    modelled_rates,
    parts,
    search_memory,
    stage_costs,
    training_memory,
    tree_cost,
)

SIZE = ModelSize(weights=1000, trained=1000, layers=2, width=8, inner=16, keys=4, vocabulary=50)


def settings(*overrides: str) -> RunConfig:
    return load_config(None, ["workers=2", "collect.batch=100", *overrides])


def rates(**changed: object) -> Rates:
    """A search costs 100 tokens, 10 steps and 0.1 s per task; a greedy episode costs 20 tokens, 4 steps and 0.01 s."""
    greedy = PlayRate(20, 4, Affine(0, 0.01))
    tree = PlayRate(100, 10, Affine(1, 0.1))
    train = TrainRate(step_tokens=50, step_seconds=2, steps_per_epoch=7.5, fixed_seconds=3)
    whole = Rates(
        tree,
        {"greedy": greedy, "mcts": tree},
        {"rft": train, "dpo": train},
        warm=train,
        demonstration_seconds=Affine(5, 0.5),
        demonstration_steps=3,
        value_seconds=6,
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


def test_a_line_goes_through_the_last_two_points_and_never_below_nothing() -> None:
    assert Affine.through((1, 9), (2, 5), (10, 13)) == Affine(3, 1)
    assert Affine.through((4, 8)) == Affine(0, 2)
    assert Affine.through((2, 1), (10, 10)) == Affine(0, 1)  # not -1.25 + 1.125 n
    assert Affine.through((2, 8), (10, 6)) == Affine(6, 0)  # noise: the larger run took less


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.integers(1, 6))
def test_a_makespan_lies_between_the_mean_load_and_twice_the_best(jobs: list[float], workers: int) -> None:
    spent = makespan(jobs, workers)
    least = max(sum(jobs) / workers, max(jobs))
    assert least - 1e-9 <= spent <= 2 * least + 1e-9


def test_jobs_go_to_the_first_free_worker_in_their_order() -> None:
    assert makespan([3, 1, 1, 4], 2) == 6  # 3 | 1 1 4
    assert makespan([], 2) == 0
    assert parts(250, 100) == [100, 100, 50]


def test_the_stages_of_a_quickstart_by_hand() -> None:
    config = settings(
        "warm_start.episodes=10",
        "warm_start.training.max_steps=4",
        "collect.tasks=250",
        'update.methods=["rft", "dpo"]',
        "update.rft.max_steps=10",
        "update.rft.validate_every=5",
        "update.dpo.max_steps=4",
        "update.validation_tasks=100",
        "evaluate.tasks=100",
        'evaluate.modes=["greedy", "mcts"]',
    )
    found = {stage.name: stage for stage in stage_costs(config, "quickstart", rates())}
    assert list(found) == ["demonstrations", "warm start", "search", "value head", "updates", "evaluation"]
    assert (found["demonstrations"].environment_steps, found["demonstrations"].seconds) == (30, 10)
    assert (found["warm start"].trained_tokens, found["warm start"].seconds) == (200, 3 + 8)
    assert (found["search"].generated_tokens, found["search"].environment_steps) == (25_000, 2_500)
    assert found["search"].seconds == pytest.approx(14.6)  # on each of two workers 63 trees, and then 63 or 61
    assert found["value head"].seconds == 6
    # rft validates before its 10 steps, after 5 and after 10; dpo before and after its 4 steps: 5 times 100 episodes.
    assert found["updates"].generated_tokens == 5 * 100 * 20
    assert found["updates"].trained_tokens == 14 * 50
    assert found["updates"].seconds == pytest.approx(3 + 10 * 2 + 3 * 1)
    # base greedy, base mcts, rft greedy, dpo greedy
    assert found["evaluation"].generated_tokens == 100 * (100 + 3 * 20)
    assert found["evaluation"].seconds == pytest.approx((1 + 50 * 0.1) + 3 * 50 * 0.01)  # each worker plays a half
    hours, price = hours_and_price(list(found.values()), 3600)
    assert price == pytest.approx(10 + 11 + 14.6 + 6 + 26 + 7.5)
    assert hours == pytest.approx(price / 3600)


def test_rounds_search_and_learn_one_after_the_other_and_epochs_become_steps() -> None:
    config = settings("adapt.rounds=2", 'adapt.methods=["rft", "dpo"]', 'evaluate.modes=["greedy", "mcts"]')
    config = replace(config, training=replace(config.training, epochs=2))
    found = stage_costs(config, "train", rates(warm=None))
    assert [(stage.name, stage.round) for stage in found] == [
        *(("search", 1), ("updates", 1), ("search", 2), ("updates", 2)),
        ("evaluation", 0),
    ]
    assert found[1].trained_tokens == 2 * 15 * 50  # 2 epochs of 7.5 steps, for two methods
    # the first and the best policy in both modes, the other policy greedily
    assert found[-1].generated_tokens == 200 * (2 * 120 + 20)


def test_with_a_lag_the_longer_of_search_and_updates_counts() -> None:
    lagging = ["adapt.rounds=2", 'adapt.methods=["rft"]', "adapt.lag=1", 'evaluate.modes=["greedy"]']
    config = settings(*lagging, "collect.tasks=100")
    config = replace(config, training=replace(config.training, epochs=1))
    found = stage_costs(config, "train", rates(warm=None))
    # Two batches of 50 tasks take 1 + 50 · 0.1 s; an update takes 3 + 8 · 2 s and two validations of 100 · 0.01 s. The
    # second one learns from the trees of both rounds, in 16 steps and three validations.
    assert [stage.seconds for stage in found[:4]] == pytest.approx([6, 15, 6, 35])
    longer = stage_costs(replace(config, collect=replace(config.collect, tasks=500)), "train", rates(warm=None))
    assert [stage.seconds for stage in longer[:2]] == pytest.approx([3 * (1 + 84 * 0.1), 0])


def test_the_first_limit_ends_a_tree() -> None:
    shape = Shape(root_tokens=30, turn_tokens=10, observation_tokens=5, steps=4)
    by_tokens = settings("search.limits={simulations=200, generated_tokens=800}")
    assert tree_cost(by_tokens, "mcts", shape).generated_tokens == 800
    by_steps = settings("search.limits={simulations=200, environment_steps=40}")
    assert tree_cost(by_steps, "mcts", shape).environment_steps == 40
    for other in ("search.selection=gumbel", "search.method=ab_mcts"):
        one_at_a_time = settings(other, "search.widening=1", "search.limits={simulations=16}")
        assert tree_cost(one_at_a_time, one_at_a_time.search.method, shape).generated_tokens == 16 * 10
    every_child = settings("search.widening=0", "search.candidates=4", "search.limits={simulations=16}")
    assert tree_cost(every_child, "mcts", shape).generated_tokens == 16 * 2 * 10
    episodes = settings("evaluate.best_of=8")
    assert tree_cost(episodes, "best_of_n", shape).environment_steps == 8 * 4
    assert tree_cost(episodes, "greedy", shape).generated_tokens == 40


def test_training_tasks_are_searched_for_as_many_episodes_as_their_limits_allow() -> None:
    """16 episodes of 4 steps, where a test task gets 8."""
    config = settings("search.method=best_of_n", "search.limits={simulations=16}", "evaluate.best_of=8")
    shape = Shape(root_tokens=30, turn_tokens=10, observation_tokens=5, steps=4)
    found = modelled_rates(config, shape, SIZE, Device("a device", flops=1e9, bandwidth=1e9, memory=1e9))
    assert found.search.environment_steps == 16 * 4
    assert found.modes["best_of_n"].environment_steps == 8 * 4


def test_plans_that_are_tried_again_cost_steps_but_no_tokens() -> None:
    device, asked = Device("a device", flops=1e9, bandwidth=1e9, memory=1e9), 'evaluate.modes=["greedy", "mcts"]'
    once, thrice = (
        modelled_rates(
            settings(asked, f"evaluate.replays={replays}"), Shape.assumed(settings()), SIZE, device, 0.5
        ).modes
        for replays in (0, 2)
    )
    assert thrice["mcts"].environment_steps == 3 * once["mcts"].environment_steps
    assert thrice["mcts"].generated_tokens == once["mcts"].generated_tokens
    assert thrice["mcts"].seconds(1) > once["mcts"].seconds(1)
    assert thrice["greedy"] == once["greedy"]


def test_by_formulas_a_model_twice_as_large_trains_twice_as_long() -> None:
    config, device = settings(), Device("a device", flops=1e9, bandwidth=1e9, memory=1e9)
    shape = Shape.assumed(config)
    one = modelled_rates(config, shape, SIZE, device).updates["rft"]
    two = modelled_rates(config, shape, replace(SIZE, weights=2000), device).updates["rft"]
    assert two.step_seconds == pytest.approx(2 * one.step_seconds)
    assert one.step_seconds == pytest.approx(6 * 1000 * one.step_tokens / 1e9)


def test_the_memory_of_an_update_by_hand() -> None:
    config = settings()
    whole = training_memory(config, "rft", SIZE, rows=3, row_tokens=10)
    layer = (10 * 8 + 4 * 16 + 4 * 4) * 4
    assert whole.parts == {
        "weights": 4000,
        "gradients": 4000,
        "optimiser": 8000,
        "copies of trained weights": 8000,
        "activations": 30 * 2 * layer,
    }
    adapter = training_memory(config, "rft", replace(SIZE, trained=100, weight_bytes=2), rows=3, row_tokens=10)
    assert adapter.parts["weights"] == 2000
    assert adapter.parts["gradients"] == 400


def test_advice_keeps_the_rows_of_a_step_and_takes_the_gentlest_settings_that_fit() -> None:
    config = settings("update.rft.batch_size=8", "training.accumulation=2")

    def memory(changed: RunConfig) -> float:
        rows = changed.update.rft.batch_size
        return rows * (10 if changed.training.gradient_checkpointing else 100)

    assert fitting(config, memory, 80, "update.rft") == ["training.gradient_checkpointing=true"]
    assert fitting(config, memory, 25, "update.rft") == [
        "training.gradient_checkpointing=true",
        "update.rft.batch_size=2",
        "training.accumulation=8",
    ]
    assert fitting(config, memory, 5, "update.rft") == []


def test_only_a_head_on_hidden_states_needs_a_copy_beside_an_engine() -> None:
    """The weights of SIZE have 4 bytes each."""
    copy, cache = 4 * SIZE.weights, 1 << 30
    engine = ["policy.generator=vllm", "workers=1", "vllm.gpu_memory_utilization=0.5"]
    assert search_memory(settings(*engine), SIZE, 1e12).parts == {"engine": 0.5e12}
    hidden = search_memory(settings(*engine, "update.value_reads=hidden"), SIZE, 1e12)
    assert hidden.bytes == 0.5e12 + copy + cache
    assert search_memory(settings("policy.generator=remote"), SIZE, 1e12).parts == {}
    served = search_memory(settings("policy.generator=remote", "update.value_reads=hidden"), SIZE, 1e12)
    assert served.bytes == copy + cache
