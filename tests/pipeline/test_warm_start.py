"""A warm start: its training rows, and weights that do not depend on interruptions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import equal
from toy_doors import Doors

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.config import load_config
from treeagent.envs import EnvDynamics, StepResult
from treeagent.generators.turn import ReAct
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.demonstrate import demonstrate, tokenise
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.progress import Advance, QuietProgress
from treeagent.pipeline.warm_start import demonstration_rows, warm_start
from treeagent.types import ToolCall
from treeagent.views.values import ValueTargetConfig, value_rows

CONFIG = Path(__file__).parents[2] / "configs" / "debug.toml"
SMALL = ["workers=1", "warm_start.episodes=24", "warm_start.noise=0.5", "warm_start.training.max_steps=6"]
SAVING = ["training.save_every=2", "warm_start.max_tokens=400"]


class Interrupting(QuietProgress):
    """Raises KeyboardInterrupt, like Ctrl-C, at a step of the work ``name``."""

    def __init__(self, name: str, step: int) -> None:
        super().__init__()
        self.name, self.step = name, step

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        done = 0

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done
            done += count
            if (name, done) == (self.name, self.step):
                raise KeyboardInterrupt

        yield advance


def start(out: Path, overrides: Sequence[str], *interruptions: tuple[str, int]) -> tuple[Path, dict[str, Any]]:
    """Make a warm start and resume it after each interruption. Returns the checkpoint and the facts of its stage."""
    config = load_config(CONFIG, [*SMALL, *overrides])
    for name, step in interruptions:
        with Run.create(out, config, resume=True) as run, pytest.raises(KeyboardInterrupt):
            warm_start(config, run, Interrupting(name, step))
    with Run.create(out, config, resume=True) as run:
        return warm_start(config, run, QuietProgress()), run.facts("warm_start")


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return ours.keys() == theirs.keys() and all(equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A warm start that was never interrupted."""
    return start(tmp_path_factory.mktemp("whole") / "run", SAVING)


def test_an_interrupted_warm_start_resumes_to_the_same_weights(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    checkpoint, facts = whole
    cut, again = start(tmp_path / "run", SAVING, ("warm_start", 4))
    assert same_weights(checkpoint, cut)
    assert not list(checkpoint.parent.glob(".*")) and not list(cut.parent.glob(".*"))
    assert facts | {"update": 0} == again | {"update": 0}
    rows = Run.open(checkpoint.parent.parent).metrics()
    assert {row["stage"] for row in rows} == {"warm_start"}


def test_a_demonstration_s_states_are_worth_its_discounted_outcome(whole: tuple[Path, dict[str, Any]]) -> None:
    """The second of two steps pays 1, with γ = 1/2. It is paid at once where that step is taken, as in trees."""
    config, env = load_config(CONFIG, [*SMALL, "search.discount=0.5"]), Doors()
    (tree,) = demonstrate(
        EnvDynamics(env, max_steps=3), env.demonstrator(0.0), env.tasks("train", 1), seed=0, grammar=ReAct()
    )
    warm = load_checkpoint(whole[0])
    (row,) = demonstration_rows(config, make_chat(warm, config), tree)
    assert row.value_targets == (0.5, 1.0, 1.0)
    searched = replace(tokenise(tree, make_chat(warm, config)), discount=0.5)
    assert [each.value_targets for each in value_rows(searched, ValueTargetConfig())] == [row.value_targets]


class Refusing(Doors):
    """Refuses every action."""

    def step(self, action: str | ToolCall) -> StepResult:
        return "the doors are locked", 0.0, False, False, {"tool_error": "the doors are locked"}


def test_a_warm_start_stops_where_no_demonstration_succeeds(tmp_path: Path) -> None:
    settings = ["environment.name=test_warm_start:Refusing", "environment.options={}", "environment.max_steps=3"]
    config = load_config(CONFIG, [*SMALL, *settings])
    with Run.create(tmp_path / "run", config, resume=False) as run, pytest.raises(RunError) as stop:
        warm_start(config, run, QuietProgress())
    for named in ("0 of 24", "72 of 72", "the doors are locked"):
        assert named in str(stop.value)
    assert not run.stages()
