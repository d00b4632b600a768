import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from treeagent.cli.app import COMMANDS, Commands, app
from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard
from treeagent.types import Action, Message, State, Task

TASK = Task("shop-1", "Buy a kettle.")
ROW = {"policy": "dpo", "mode": "mcts", "success": 0.835, "reward": 0.9, "tasks": 200}


def treeagent(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def sentence(*arguments: str | Path) -> str:
    result = treeagent(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *before, said = result.stderr.splitlines()
    assert all(line.startswith("settings of ") for line in before), before  # of a settings file that was found
    return said.strip()


def sample_tree() -> Tree:
    """Two steps, the last of them rewarded."""
    root = Node(State(TASK, (Message("user", TASK.prompt),)))
    node = root
    for call in ("search[red kettle]", "buy[1]"):
        state = State(TASK, (*node.state.messages, Message("assistant", call), Message("user", "Here.")))
        node.edges.append(Edge(Action(call, call), 1.0, visits=1, value_sum=1.0, child=Node(state)))
        assert node.edges[0].child is not None
        node = node.edges[0].child
    node.terminated = True
    root.edges[0].child.edges[0].reward = 1.0  # type: ignore[union-attr]
    return Tree(TASK, 7, root)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with Run.create(path, RunConfig(), resume=False) as run:
        write_shard(run.trees, "collect", 0, [to_record(sample_tree())])
        run.finish("collect", {"trees": 1})
    return path


VLLM = find_spec("vllm") is not None


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("environment.name=shopp", "'shop'"),
        pytest.param("policy.generator=vllm", "treeagent[vllm]", marks=pytest.mark.skipif(VLLM, reason="it is there")),
    ],
)
def test_what_is_missing_is_told_before_torch_is_imported(setting: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    program = (
        "import atexit, sys; from treeagent.__main__ import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "sys.argv = ['treeagent', 'eval', 'model', '--out', 'run', sys.argv[1]]; main()"
    )
    command = [sys.executable, "-c", program, setting]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n") and told in done.stderr


def test_help_comes_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from treeagent.__main__ import main; sys.argv = ['treeagent', '--help']\n"
        "try: main()\n"
        "except SystemExit: print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    )
    before = os.times()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = os.times()  # CPU time, because other tests share the machine
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.5
    assert result.stdout.splitlines()[-1] == "[]"
    assert all(command in result.stdout for command in COMMANDS)


def test_a_bad_setting_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = sentence("quickstart", "--out", out, "search.limits.simulations=none")
    assert "search.limits.simulations" in said and '"none"' in said
    said = sentence("quickstart", "--out", out, "--config", tmp_path / "no.toml")
    assert "no.toml" in said and "recipe" in said
    assert "baselines/ppo" in sentence("quickstart", "--out", out, "--config", "ppo")
    assert not out.exists()


FEW = ("warm_start.tasks=33", "collect.tasks=33", "update.validation_tasks=33", "evaluate.tasks=33")
"""As many tasks as each split of the example environment has."""


@pytest.mark.parametrize(
    ("command", "too_many", "named"),
    [
        ("quickstart", "warm_start.tasks=34", ("warm_start.tasks", "34", "train")),
        ("quickstart", "policy.actions=score", ("policy.actions", "'score'", "legal_actions")),
        ("train", "adapt.rounds=2", ("adapt.rounds", "collect.tasks", "66", "train")),
    ],
)
def test_too_few_tasks_are_told_before_anything_is_done(
    tmp_path: Path, command: str, too_many: str, named: tuple[str, ...]
) -> None:
    settings = ("environment.name=treeagent.envs.example:Example", *FEW, "adapt.rounds=1", too_many)
    told = sentence(command, "--out", tmp_path / "run", *settings)
    assert all(name in told for name in named), told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "settings", "named"),
    [
        ("quickstart", ["policy.generator=vllm", "workers=1"], ["vllm"]),
        ("train", ["policy.device_map=here"], ["device_map", "here"]),
        ("train", ["policy.model=gone/model"], ["gone/model"]),
        ("train", ["policy.structured=true", "policy.generator=remote"], ["dpo"]),
    ],
)
def test_what_cannot_be_had_is_told_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, settings: list[str], named: list[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for package in ("ray", "vllm"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in ("treeagent.generators.vllm",):
        monkeypatch.delitem(sys.modules, module, raising=False)
    told = sentence(command, "--out", tmp_path / "run", 'adapt.methods=["dpo"]', *settings)
    assert all(name in told for name in named), told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["collect", "eval"])
def test_a_folder_without_a_checkpoint_is_one_sentence(tmp_path: Path, command: str) -> None:
    said = sentence(command, tmp_path, "--out", tmp_path / "run")
    assert str(tmp_path) in said and "config.json" in said
    for name in (tmp_path / "nowhere", "nowhere", "../x/y", "search.limits.simulations=3", "./nowhere"):
        assert str(name) in sentence(command, name, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def failing(error: BaseException) -> typer.Typer:
    commands = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @commands.command()
    def fail() -> None:
        raise error

    @commands.command()
    def fail_and_resume(resume: bool = False) -> None:
        raise error

    @commands.command()
    def other() -> None: ...

    return commands


def test_an_interrupt_tells_how_to_go_on() -> None:
    for command, how in (("fail-and-resume", "--resume"), ("fail", "same command")):
        result = CliRunner().invoke(failing(KeyboardInterrupt()), [command])
        assert result.exit_code == 130 and how in result.stderr
