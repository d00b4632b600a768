"""Trees grown in imagination, and what verification leaves of them, in an environment of two doors opened twice."""

import asyncio
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from command import CONFIG, treeagent
from hypothesis import given
from hypothesis import strategies as st
from toy_doors import PRIZES, BothDoors, Doors, Teller, seen, served, teller_model

from treeagent.envs import EnvDynamics
from treeagent.pipeline import world
from treeagent.pipeline.folder import Run
from treeagent.pipeline.imagination import Imagination, verify_all
from treeagent.pipeline.trees import read_trees
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Tree, finished_paths, path_return
from treeagent.store import digest, read_as, shards
from treeagent.types import Dynamics
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.figures import tree_figures
from treeagent.views.pairs import PairConfig, preference_pairs
from treeagent.views.transitions import transitions
from treeagent.world_model.fidelity import audit

ENDS = ["".join(doors) for doors in product("lr", repeat=2)]
SEARCH = SearchConfig(limits=Limits(simulations=20), candidates=2)
PAIRS = PairConfig(min_margin=0.1, rule="all")


def settings(url: str) -> list[str]:
    return [
        "workers=1", "environment.name=toy_doors:Doors", "environment.options={}", "environment.max_steps=3",
        "policy.max_new_tokens=12", "policy.scratch.width=32", "policy.scratch.layers=1",
        "warm_start.episodes=200", "warm_start.noise=0.5", "warm_start.training.max_steps=60",
        "collect.tasks=8", "collect.batch=2", "search.limits.simulations=16", "update.validation_tasks=2",
        "evaluate.tasks=2", 'evaluate.modes=["greedy"]', 'adapt.methods=["dpo"]', "adapt.imagined=0.5",
        "adapt.seed_tasks=40",
        "world.demonstrations=20", "world.generator=remote", "world.model=teller",
        f"world.url={url}", "world.reasoning=false", "world.verify_steps=2", "world.noise=0.2",
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def larger_share() -> Iterator[None]:
    """Hold out more steps, because the runs are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "HELD_OUT", 0.4)
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A world model that is always right."""
    with served(Teller()) as url:
        yield url


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    out = tmp_path_factory.mktemp("imagine") / "run"
    done = treeagent("train", "--config", CONFIG, "--out", out, *settings(server), "adapt.rounds=2")
    assert done.returncode == 0, done.stderr
    return out


def search(dynamics: Dynamics, config: SearchConfig = SEARCH, count: int = 1) -> list[Tree]:
    return asyncio.run(Search(BothDoors(), dynamics, config).run(Doors().tasks("train", count), list(range(count))))


def imagine(teller: Teller, env: Doors | None = None, *, steps: int = 20, config: SearchConfig = SEARCH) -> Tree:
    real = EnvDynamics(env or Doors(), max_steps=2)
    trees = search(Imagination(real.reset, teller_model(teller)), config)
    asyncio.run(verify_all(trees, real, steps))
    return trees[0]


def optimist(taken: str) -> float:
    return 1.0


def edges(tree: Tree) -> dict[str, Edge]:
    """The expanded edges by the doors taken."""
    return {"".join(str(edge.action.call) for edge in path): path[-1] for path, _ in tree.walk() if path}


def origins(tree: Tree) -> dict[str, str]:
    return {taken: edge.child.origin for taken, edge in edges(tree).items() if edge.child is not None}


def test_a_winner_that_keeps_its_word_becomes_real_and_beats_what_promised_less() -> None:
    env = Doors()
    tree = imagine(Teller(), env)
    assert env.steps == tree.budget.environment_steps == 2
    assert (tree.budget.claims, tree.budget.claims_kept) == (1, 1)
    assert origins(tree) == {"l": "imagined", "r": "real", "rl": "imagined", "rr": "real"}
    assert edges(tree)["r"].value == edges(tree)["rr"].value == 1.0  # what the replay returned, not a mean
    chosen = [(pair.chosen.token_ids, pair.context_ids) for pair in preference_pairs(tree, PAIRS)]
    assert chosen == [((101,), (1,)), ((101,), (1, 101, 3))]
    assert [one.action for one in transitions(tree) if one.origin == "real"] == ["r", "r"]


def test_a_winner_that_fails_is_corrected_and_the_next_promise_tried() -> None:
    """The model prefers the left doors; the right ones are second."""
    env = Doors()
    tree = imagine(Teller(prize=lambda taken: {"ll": 1.0, "lr": 0.2, "rl": 0.1, "rr": 0.9}[taken]), env)
    assert env.steps == 4
    assert (tree.budget.claims, tree.budget.claims_kept) == (1, 0)
    found = {taken: edge.value for taken, edge in edges(tree).items()}
    assert found == {"l": 0.0, "ll": 0.0, "r": 1.0, "rl": pytest.approx(0.1), "rr": 1.0}  # "lr" promised more than 0
    assert origins(tree) == {"l": "real", "ll": "real", "r": "real", "rl": "imagined", "rr": "real"}


@given(st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0]), min_size=4, max_size=4), st.sets(st.sampled_from("lr")))
def test_nothing_is_preferred_that_was_not_replayed(told: list[float], lies: set[str]) -> None:
    """Whatever the model predicts of prizes and observations."""
    prizes = dict(zip(ENDS, told, strict=True))
    tree = imagine(Teller(prizes.__getitem__, lambda taken: "a dragon" if taken in lies else seen(taken)))
    real = {taken: edge for taken, edge in edges(tree).items() if origins(tree)[taken] == "real"}
    tokens = {(100 if taken[-1] == "l" else 101, len(taken)) for taken in real}
    for pair in preference_pairs(tree, PAIRS):
        assert (pair.chosen.token_ids[0], len(pair.context_ids) // 2 + 1) in tokens
    for taken, edge in real.items():
        assert edge.value in {PRIZES[end] for end in ENDS if end.startswith(taken)}
    for taken, edge in edges(tree).items():
        if taken not in real:
            beside = [other.value for name, other in real.items() if name[:-1] == taken[:-1] and name != taken]
            assert beside and edge.value < max(beside)
    scored = advantages([tree], AdvantageConfig())
    assert all(id(edge) in map(id, real.values()) for edge in edges(tree).values() if scored.get(id(edge), 0.0) > 0)
    finished = list(finished_paths(tree))
    if finished:  # the choice of imitation and of pairs of whole paths
        best = max(finished, key=lambda path: (path_return(path), -len(path)))
        assert all(id(edge) in map(id, real.values()) for edge in best)


def test_an_audit_catches_an_optimist() -> None:
    """A model that predicts success everywhere is allowed a share of 0."""
    held_out = [one for tree in search(EnvDynamics(Doors(), max_steps=2), count=100) for one in transitions(tree)]
    flattered = asyncio.run(audit(teller_model(Teller(prize=optimist)), held_out))
    assert flattered.optimism == pytest.approx(1 - sum(PRIZES.values()) / 4)
    assert flattered.wrong_episodes == 0.75
    assert flattered.lambda_cap == 0.0
    honest = asyncio.run(audit(teller_model(Teller()), held_out))
    assert (honest.optimism, honest.wrong_episodes) == (0.0, 0.0)
    assert honest.lambda_cap == 1.0


@pytest.mark.slow
def test_a_small_share_is_allowed_and_the_rest_is_real(run: Path) -> None:
    stages = Run.open(run).stages()
    assert stages["audit-1"]["lambda_cap"] > 0.5 == stages["audit-1"]["imagined"]
    # The first world model's demonstrations are reused by the second.
    assert stages["world-1"]["demonstrated_steps"] > 0 == stages["world-2"]["demonstrated_steps"]
    rows = [row for row in Run.open(run).metrics() if row["stage"] == "adapt"]
    for number, row in enumerate(rows, start=1):
        imagined, real = stages[f"collect-{number}-imagined"], stages[f"collect-{number}"]
        assert imagined["tasks"] == real["tasks"] == 4
        assert imagined["imagined_steps"] > 0 == real["imagined_steps"]
        assert imagined["environment_steps"] <= 4 * 2  # a replay of the two steps of each winner
        assert imagined["claims"] == imagined["claims_kept"] > 0
        assert (row["imagined"], row["cr"]) == (0.5, 1.0)
        for kind, name in (("", f"collect-{number}"), ("imagined/", f"collect-{number}-imagined")):
            told = tree_figures(read_trees(run / "trees", [name]))
            assert {figure: row[f"{kind}{figure}"] for figure in told} == told
    assert rows[1]["imagined_steps"] == sum(stages[f"collect-{number}-imagined"]["imagined_steps"] for number in (1, 2))
    assert json.loads((run / "fidelity.json").read_text())["cr"] == 1.0


@pytest.mark.slow
def test_a_killed_batch_of_imagination_is_searched_again_and_what_is_on_disk_is_kept(run: Path, server: str) -> None:
    stages = json.loads((run / "stages.json").read_text())
    names = list(stages)
    kept = names[: names.index("collect-2-imagined")]
    (run / "stages.json").write_text(json.dumps({name: stages[name] for name in kept}))
    first, second = shards(run / "trees", "collect-2-imagined")
    before, written = digest(read_as(dict, run / "trees")), first.stat().st_mtime_ns
    second.unlink()
    done = treeagent("train", "--out", run, "--resume", "--trust")
    assert done.returncode == 0, done.stderr
    assert first.stat().st_mtime_ns == written
    assert digest(read_as(dict, run / "trees")) == before
    again = Run.open(run).facts("collect-2-imagined")
    assert again["claims"] == stages["collect-2-imagined"]["claims"]
