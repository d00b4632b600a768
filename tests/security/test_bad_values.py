"""Values that no file can hold, and exceptions that would end the run, only cost the episode in which they occur."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import treeagent
from hostile_env import ANSWERS, HALF, HOSTILE, TASKS, Hostile

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.envs import Env, EnvDynamics
from treeagent.envs.base import StepResult, ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import ReAct, ToolCalls
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.outcomes import load_batch, save_batch
from treeagent.pipeline.trees import write_trees
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.record import Record, from_record
from treeagent.store import read_as
from treeagent.types import Action, Proposal, State, Task, ToolCall


class BothWords:
    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        actions = tuple(Action(word, word, token_ids=(1,), logprobs=(-1.0,)) for word in ("on", "end"))
        return [Proposal((1,), actions) for _ in states]


def searched(env: Env, tasks: Sequence[Task], folder: Path) -> list[Record]:
    """Search the tasks together and store the trees. Returns their records without wall time."""
    search = Search(BothWords(), EnvDynamics(env, max_steps=3), SearchConfig(limits=Limits(simulations=6)))
    trees = asyncio.run(search.run(tasks, list(range(len(tasks)))))
    write_trees(folder, "collect", 0, trees)
    return [record | {"budget": record["budget"] | {"seconds": 0.0}, "spent": {}} for record in read_as(dict, folder)]


def around(bad: Task) -> list[Task]:
    return [Task("first", "walk"), bad, Task("last", "walk")]


def assert_lost_alone(trees: Sequence[Record], sound: Sequence[Record], bad: Task) -> None:
    first, lost, last = trees
    assert [first, last] == [sound[0], sound[2]]
    assert lost["error"]
    assert lost["task"]["id"] == str(bad.id).replace(HALF, "?")
    assert from_record(lost).task.split == "train"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    trees = searched(Hostile(), around(Task("sound", "walk")), tmp_path_factory.mktemp("sound"))
    assert not any(tree["error"] for tree in trees)
    return trees


@pytest.mark.parametrize("attack", ANSWERS)
def test_a_bad_answer_costs_its_own_tree_alone(attack: str, sound: list[Record], tmp_path: Path) -> None:
    bad = Task(attack, "walk")
    assert_lost_alone(searched(Hostile(), around(bad), tmp_path), sound, bad)


@pytest.mark.parametrize("attack", TASKS)
def test_a_bad_task_costs_its_own_tree_alone(attack: str, sound: list[Record], tmp_path: Path) -> None:
    assert_lost_alone(searched(Hostile(), around(TASKS[attack]), tmp_path), sound, TASKS[attack])


SHAPE = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=256)
TOKENIZER = train_tokenizer(["Thought: walk Action: on"] * 5, SHAPE)


def config(bad: str) -> RunConfig:
    return load_config(
        None,
        [
            f"environment.name={HOSTILE}",
            f'environment.options.bad="{bad}"',
            "environment.max_steps=2",
            "policy.max_new_tokens=4",
            "search={limits={simulations=2},candidates=2}",
        ],
    )


@pytest.mark.parametrize("bad", ["exit at reset", "deeper data than Python's stack"])
def test_the_stages_store_the_other_trees_and_outcomes(bad: str, tmp_path: Path) -> None:
    save_checkpoint(Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path / "base")
    collecting = SearchJob(config(bad), tmp_path / "base", "collect", 0, [0, 1, 2], tmp_path)
    assert search_batch(collecting, lambda event: None).failed == 1
    assert [bool(tree.error) for tree in read_as(from_record, tmp_path, "collect")] == [False, True, False]
    evaluating = EvaluationJob(config(bad), tmp_path / "base", "evaluate", 0, [0, 1, 2], tmp_path, "mcts")
    batch = evaluate_batch(evaluating, lambda event: None)
    assert [bool(outcome.error) for outcome in batch[0]] == [False, True, False]
    save_batch(tmp_path / "kept.json", batch)
    kept = load_batch(tmp_path / "kept.json")
    assert kept is not None and [bool(outcome.error) for outcome in kept[0]] == [False, True, False]


BAD_JSON = ['{"text": "\\ud800"}', '{"\\udfff": 1}', '{"text": NaN}', '{"text": 1e999}', '{"text": ' + "9" * 5000 + "}"]


@pytest.mark.parametrize("arguments", BAD_JSON)
def test_a_model_s_call_with_values_that_no_file_can_hold_reaches_no_tool(arguments: str) -> None:
    asked = list[str | ToolCall]()

    class Echo(Hostile):
        def tools(self) -> Sequence[ToolSpec]:
            return (text_tool("say", "Say a text.", "text"),)

        def step(self, action: str | ToolCall) -> StepResult:
            asked.append(action)
            return str(action), 0.0, False, False, {}

    dynamics = EnvDynamics(Echo(), max_steps=3)
    text = f"Action: say {arguments}"
    state = asyncio.run(dynamics.reset(Task("t", "walk")))
    asyncio.run(dynamics.step(state, ReAct().read(text)))
    assert asked == [f"say {arguments}"]  # as it was written, without parsing
    assert ToolCalls().read(f'<tool_call>{{"name": "say", "arguments": {arguments}}}</tool_call>').error


@pytest.mark.parametrize(
    "place", ["", "    def __init__(self): raise SystemExit(0)\n", "    def tasks(self, *_): raise SystemExit(0)\n"]
)
def test_an_exit_outside_of_an_episode_is_told_and_is_no_success(place: str, tmp_path: Path) -> None:
    name = f"leaver{len(place)}"
    head = "from treeagent.envs import Env\n" if place else "raise SystemExit(0)\n"
    body = "    def reset(self, **_): ...\n    def step(self, action): ...\n    def tasks(self, *_): ...\n"
    (tmp_path / f"{name}.py").write_text(f"{head}class Leaver(Env if {bool(place)} else object):\n{body}{place}")
    done = treeagent("envs", "check", f"{name}:Leaver", cwd=tmp_path)
    assert done.returncode != 0
    assert "SystemExit(0)" in done.stdout + done.stderr
