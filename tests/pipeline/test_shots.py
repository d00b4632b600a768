"""Demonstrations in prompts: played on training tasks or read from a file, stored with trees, and refused with a
reason."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.envs.calls import as_call
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.build import conversation, environment, make_chat, shots
from treeagent.pipeline.collect import SearchJob, search_batch
from treeagent.pipeline.shots import Shot, read_shots
from treeagent.pipeline.update import TrainJob, refuse_foreign
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Message, UserError

SHOP = [
    "environment.options={products=200,difficulty=1}",
    "environment.max_steps=6",
    "policy.max_new_tokens=4",
    "search={limits={simulations=2},candidates=2}",
]
SHAPE = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=2048)
TOKENIZER = train_tokenizer(["search[red shirt]", "click[1]"], SHAPE)


def config(*settings: str) -> RunConfig:
    return load_config(None, [*SHOP, *settings])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(
        Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER), tmp_path_factory.mktemp("checkpoints") / "base"
    )


def test_shots_are_successes_on_training_tasks() -> None:
    wanted = config("policy.shots=2")
    found = shots(wanted)
    assert len(found) == 2 and found == shots(wanted)
    tasks = environment(wanted).tasks("train", 20)
    assert all(any(task.prompt in shot.prompts[0] for task in tasks) for shot in found)
    for shot in found:
        assert len(shot.prompts) == len(shot.turns) > 1 and shot.turns[-1][1] == "click[buy now]"
    assert shots(config()) == ()
    assert shots(config("policy.shots=1")) == found[:1]


@pytest.mark.parametrize("format", ["react", "tools"])
def test_each_turn_of_a_shot_is_written_in_the_policy_s_format(format: str) -> None:
    wanted = config("policy.shots=1", f"policy.format={format}")
    [shot] = shots(wanted)
    grammar, tools = make_grammar(format), environment(wanted).tools()
    messages = shot.messages(grammar, tools)
    assert [message.role for message in messages] == ["user", "assistant"] * len(shot.turns)
    for message, turn in zip(messages[1::2], shot.turns, strict=True):
        assert not isinstance(turn, str)
        thought, said = turn
        action = grammar.read(message.content)
        assert (action.error, action.thought) == ("", thought)
        assert action.call == (said if format == "react" else as_call(said, tools))


def lines(path: Path, *talks: object) -> Path:
    path.write_text("\n".join(json.dumps(talk) for talk in talks) + "\n\n")
    return path


def talk(*texts: str, first: int = 0) -> dict[str, object]:
    roles = ("user", "assistant")
    return {
        "messages": [{"role": roles[place % 2], "content": each} for place, each in enumerate(texts, start=first)],
        "id": 7,
    }


def test_shots_of_a_file_are_shown_as_they_are_written(tmp_path: Path) -> None:
    file = lines(tmp_path / "shots.jsonl", talk("find a", "Action:  b", "c"), talk("d", "e", "f", "g"))
    assert read_shots(file) == [Shot(("find a",), ("Action:  b",)), Shot(("d", "f"), ("e", "g"))]
    wanted = config(f"policy.shots={file}")
    chat, _ = conversation(TOKENIZER, wanted, 10_000)
    prompt = TOKENIZER.decode(list(chat.prompt_ids((Message("user", "go"),))))
    said = "".join(f"<|user|>{user}<|end|><|assistant|>{agent}<|end|>" for user, agent in [("find a", "Action:  b")])
    said += "<|user|>d<|end|><|assistant|>e<|end|><|user|>f<|end|><|assistant|>g<|end|>"
    assert prompt == f"{said}<|user|>go<|end|><|assistant|>"


def test_what_was_shown_is_the_root_s_context_and_foreign_trees_are_refused(base: Path, tmp_path: Path) -> None:
    wanted = config("policy.shots=2", "policy.instructions=Be brief.")
    search_batch(SearchJob(wanted, base, "collect", 0, [0, 1], tmp_path), lambda event: None)
    trees = list(read_as(from_record, tmp_path, "collect"))
    checkpoint = Checkpoint(random_model(TOKENIZER, SHAPE, 0), TOKENIZER)
    chat = make_chat(checkpoint, wanted)
    for tree in trees:
        assert tree.root.context_ids == chat.prompt_ids(tree.root.state.messages)
        assert tree.root.context_ids[: len(chat.shared_ids())] == chat.shared_ids()
        assert "click[buy now]" in TOKENIZER.decode(list(tree.root.context_ids))
        assert len(tree.root.state.messages) == 1  # shots are not part of the conversation

    def job(config: RunConfig) -> TrainJob:
        return TrainJob(config, base, "rft", tmp_path, ("collect",), tmp_path / "rft")

    refuse_foreign(trees[0], chat, job(wanted))
    for other in ({"shots": 1}, {"instructions": "auto"}, {"instructions": "Be  brief."}):
        told = replace(wanted, policy=replace(wanted.policy, **other))
        with pytest.raises(UserError, match=r"policy\.shots"):
            refuse_foreign(trees[0], make_chat(checkpoint, told), job(told))
