"""Exported trees: what a row holds, how the datasets library and TRL read it, and that a kill leaves no broken
export."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from treeagent.cli.app import app
from treeagent.config import load_config
from treeagent.contrib.traces.dataset import VIEWS, export
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import ReAct
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard
from treeagent.types import Message, Split, State, Task

DOCS = Path(__file__).parents[3] / "docs" / "export.md"
SCRATCH = ScratchConfig(vocabulary=400, layers=1, width=32, heads=2, context=256)
TEMPERATURE = 0.5
SETTINGS = ["environment.options.difficulty=2", f"policy.temperature={TEMPERATURE}"]
Score = Callable[[Sequence[int], Sequence[int]], Sequence[float]]


def tenths(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Log-probabilities in which every token has -1/10."""
    return [-0.1] * len(ids)


def act(
    chat: ChatFormat,
    score: Score,
    tree: Tree,
    path: tuple[Edge, ...],
    text: str,
    answer: str,
    visits: int,
    value_sum: float,
    reward: float | None = None,
) -> Edge:
    """Add an action at the end of a path, with the environment's answer. With a reward it ends the task."""
    node = path[-1].child if path else tree.root
    assert node is not None
    ids = chat.encode_action(text)
    action = ReAct().read(text, ids, tuple(score(tree.prompt_ids(path), ids)))
    messages = (*node.state.messages, Message("assistant", text, ids), Message("user", answer))
    child = Node(State(tree.task, messages), context_ids=chat.context_ids(messages), terminated=reward is not None)
    node.edges.append(Edge(action, 0.5, visits, value_sum, reward or 0.0, child))
    return node.edges[-1]


def shop_tree(chat: ChatFormat, number: int, split: Split = "train", score: Score = tenths) -> Tree:
    """Two searches with Q 3/4 and 0. After the better one come two purchases, of which one wins and one loses."""
    task = Task(f"{split}-{number}", f"Buy kettle {number}.", split, data={"answer": "secret"})
    messages = (Message("system", "You are in a shop."), Message("user", task.prompt))
    tree = Tree(task, number, Node(State(task, messages), context_ids=chat.context_ids(messages)))
    tree.budget = Budget(simulations=5, environment_steps=4, generated_tokens=60, estimates=3)
    good = act(chat, score, tree, (), "Thought: look\nAction: search[kettle]", f"1 kettle ${number}", 4, 3.0)
    act(chat, score, tree, (), "Action: search[tea]", "1 tea $2", 1, 0.0)
    act(chat, score, tree, (good,), "Action: buy[1]", "Thank you.", 3, 3.0, reward=1.0)
    lost = act(chat, score, tree, (good,), "Action: buy[2]", "Sold out.", 1, 0.0, reward=0.0)
    assert lost.child is not None
    lost.child.origin = "imagined"
    return tree


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(
        ["Thought: look\nAction: search[kettle] buy[1] You are in a shop. Sold out. $2"] * 9, SCRATCH
    )


@pytest.fixture(scope="module")
def chat(tokenizer: PreTrainedTokenizerFast) -> ChatFormat:
    return ChatFormat(tokenizer)


def make_run(path: Path, batches: Sequence[Sequence[Tree]]) -> Run:
    with Run.create(path, load_config(None, SETTINGS), resume=False) as run:
        for index, trees in enumerate(batches):
            write_shard(run.trees, "collect", index, map(to_record, trees))
        for stage, checkpoint in (("collect-1", Path("org/warm")), ("collect-2", run.checkpoints / "round-1-dpo")):
            run.record_checkpoint(stage, checkpoint)
            run.finish(stage, {})
    return Run.open(path)


@pytest.fixture
def run(chat: ChatFormat, tmp_path: Path) -> Run:
    """Five trees in two shards, one of them for validation."""
    first = [shop_tree(chat, number) for number in range(3)]
    return make_run(tmp_path / "run", [first, [shop_tree(chat, 3), shop_tree(chat, 4, "validation")]])


def write(run: Run, out: Path) -> dict[str, int]:
    return export(run.config, run, QuietProgress(), list(VIEWS), out)


def load(out: Path, view: str, split: str = "train") -> Dataset:
    return load_dataset(str(out), view, split=split, cache_dir=str(out.parent / "cache"))


def sentence(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr.splitlines()[-1]


def test_the_datasets_library_reads_every_view_and_split(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = write(run, out)
    assert rows == {"pairs": 10, "advantages": 15, "sft": 5}
    for view, count in rows.items():
        train, validation = load(out, view), load(out, view, "validation")
        assert (len(train), len(validation)) == (count * 4 // 5, count // 5)
        assert set(train["task_id"]) == {f"train-{number}" for number in range(4)}
        assert set(validation["task_id"]) == {"validation-4"}
    assert "secret" not in str([path.read_bytes() for path in out.rglob("*") if path.is_file()])


def test_rows_by_hand(chat: ChatFormat, run: Run) -> None:
    tree = shop_tree(chat, 7)
    good, bad = tree.root.edges
    assert good.child is not None
    won = good.child.edges[0]
    first, second = VIEWS["pairs"](tree, run.config)
    told = [{"role": "system", "content": "You are in a shop."}, {"role": "user", "content": "Buy kettle 7."}]
    assert first == {
        "task_id": "train-7",
        "prompt": told,
        "chosen": [{"role": "assistant", "content": "Thought: look\nAction: search[kettle]"}],
        "rejected": [{"role": "assistant", "content": "Action: search[tea]"}],
        "ends_turn": True,
        "prompt_ids": tree.root.context_ids,
        "chosen_ids": good.action.token_ids,
        "rejected_ids": bad.action.token_ids,
        "chosen_mask": (True,) * len(good.action.token_ids),
        "rejected_mask": (True,) * len(bad.action.token_ids),
        "ref_chosen_logps": pytest.approx(-0.1 * len(good.action.token_ids)),
        "ref_rejected_logps": pytest.approx(-0.1 * len(bad.action.token_ids)),
        "margin": 0.75,
        "origin": "real",
    }
    seen = [*told, *first["chosen"], {"role": "user", "content": "1 kettle $7"}]
    assert (second["prompt"], second["chosen"]) == (seen, [{"role": "assistant", "content": "Action: buy[1]"}])
    [imitated] = VIEWS["sft"](tree, run.config)
    assert imitated["messages"] == [*seen, *second["chosen"]]
    assert imitated["input_ids"] == tree.prompt_ids((good, won))
    assert [token for token in imitated["labels"] if token != -100] == [*good.action.token_ids, *won.action.token_ids]
    assert [row["origin"] for row in VIEWS["advantages"](tree, run.config)] == ["real", "imagined", "real"]
    advantages = [row["advantages"][-1] for row in VIEWS["advantages"](tree, run.config)]
    assert advantages == pytest.approx([0.5, -0.5, -0.375])  # Q 1 - 1/2, 0 - 1/2, 0 - 3/8


def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert sentence(tmp_path, "--out", out).startswith(f"{tmp_path} holds no run")
    empty = make_run(tmp_path / "empty", [])
    assert sentence(empty.path, "--out", out).startswith(f"{empty.path} holds no trees: make some with treeagent coll")
    said = sentence(run.path, "--out", out, "--view", "pears")
    assert "'pears'" in said and "pairs, advantages, sft" in said
    said = sentence(run.path, "--out", out, "update.pairs.min_margin=2.0")
    assert said.startswith(f"the view pairs of {run.path} has no rows")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
    out.mkdir()
    assert str(out) in sentence(run.path, "--out", out)


@pytest.fixture
def trained(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with a tiny model in ``model`` and an export of trees in ``data``. Stored log-probabilities are those of
    the model at the sampling temperature; a parameter lowers those of the first actions."""
    lowered = getattr(request, "param", 0.0)
    model = random_model(tokenizer, SCRATCH, 0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    @torch.no_grad()
    def score(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        whole = torch.tensor([[*prompt, *ids]])
        logprobs = torch.log_softmax(model(input_ids=whole).logits[0, len(prompt) - 1 : -1] / TEMPERATURE, -1)
        return [float(each) for each in logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]]

    trees = [shop_tree(ChatFormat(tokenizer), number, score=score) for number in range(4)]
    for node in (node for tree in trees for node in tree.nodes() if node.edges):
        first, *others = node.edges[0].action.logprobs
        node.edges[0].action = replace(node.edges[0].action, logprobs=(first - lowered, *others))
    write(make_run(tmp_path / "run", [trees[:2], trees[2:]]), tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def first_loss(trained: Path, block: int) -> float:
    """The loss of the first step when a block of code of docs/export.md runs on the export."""
    code = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[block]
    small = "use_cpu=True, bf16=False, gradient_checkpointing=None, disable_tqdm=True, logging_steps=1, max_steps=1"
    code = re.sub(r"(?m)^(SFTTrainer|DPOTrainer)\((.*)\)\.train\(\)$", r"trainer = \1(\2)\ntrainer.train()", code)
    scope: dict[str, Any] = {"DIR": str(trained / "data"), "MODEL": str(trained / "model"), "TEMPERATURE": TEMPERATURE}
    exec(code.replace("max_length=None", f"max_length=None, {small}"), scope)
    return float(scope["trainer"].state.log_history[0]["loss"])


def test_trl_imitates_exported_rows_as_documented(trained: Path) -> None:
    """The loss is the mean over the policy's own tokens of the whole batch, and over no other token."""
    rows = load(trained / "data", "sft")
    model = AutoModelForCausalLM.from_pretrained(trained / "model").requires_grad_(False)
    total, count = 0.0, 0
    for row in rows:
        ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
        total -= float(logprobs[labels[1:] != -100].sum())
        count += int((labels != -100).sum())
    assert first_loss(trained, 0) == pytest.approx(total / count, rel=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # TRL's own
@pytest.mark.parametrize(
    ("trained", "block", "loss"), [(0.0, 1, 0.693147), (0.0, 2, 0.693147), (10.0, 2, 0.313262)], indirect=["trained"]
)
def test_trl_prefers_exported_pairs_as_documented(trained: Path, block: int, loss: float) -> None:
    """On texts the reference is the model itself: -log σ(0). On ids the reference is the stored log-probabilities: -log
    σ(0) if they are the model's own, and -log σ(1) if those of the chosen side are lower by 10, with β = 0.1."""
    assert first_loss(trained, block) == pytest.approx(loss, abs=1e-4)
