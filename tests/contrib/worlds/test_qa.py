"""Search question answering: its index, what its verifier accepts, the user's own files, and the contract."""

import json
import random
from pathlib import Path

import pytest

from treeagent.contrib.worlds.qa import QaEnv, QaOptions
from treeagent.contrib.worlds.qa.corpus import Index, OwnFiles, Passage
from treeagent.contrib.worlds.qa.encyclopedia import Encyclopedia
from treeagent.envs import check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import SPLITS, ToolCall, UserError


def begun(index: int = 0, **options: object) -> QaEnv:
    env = QaEnv(QaOptions(articles=300, **options))  # type: ignore[arg-type]
    env.reset(options={"task": env.tasks("train", 1, index)[0]})
    return env


def files(folder: Path, passages: list[dict[str, object]], questions: list[dict[str, object]]) -> dict[str, object]:
    paths = {"corpus": folder / "corpus.jsonl", "questions": folder / "questions.jsonl"}
    for path, rows in zip(paths.values(), (passages, questions), strict=True):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {name: str(path) for name, path in paths.items()}


NORWAY: dict[str, object] = {"id": "a", "title": "Norway", "text": "Its capital is Oslo."}


def test_an_episode_reads_on_from_what_it_has_found() -> None:
    env = QaEnv(QaOptions(difficulty=2, passages=1))
    task = env.tasks("test", 1)[0]
    observation, _ = env.reset(options={"task": task})
    assert observation == "an encyclopedia is open"
    first, second = env.key.hops
    assert first.query in task.prompt
    assert second.query == first.finds
    for hop in (first, second):
        observation, reward, terminated, _, info = env.step(f"search[{hop.query}]")
        assert observation.startswith(f"{hop.query}: ")
        assert hop.finds in observation
        assert (reward, terminated, info) == (0.0, False, {})
    place = env.snapshot()
    assert env.step(f"answer[{first.finds}]")[:3] == ("answered", 0.0, True)
    env.restore(place)
    for call in (
        f"answer[{second.finds}]",
        f"answer[the {second.finds.upper()}!]",
        ToolCall("answer", {"text": second.finds}),
    ):
        env.restore(place)
        assert env.verify() == 0.0
        assert env.step(call) == ("answered", 1.0, True, False, {})
        assert env.verify() == 1.0


@pytest.mark.parametrize("index", range(4))
def test_no_cheap_answer_is_right(index: int) -> None:
    env = begun(index)
    task, place = env.tasks("train", 1, index)[0], env.snapshot()
    names = [name for hop in env.key.hops for name in (hop.query, hop.finds)]
    titles = [passage.title for passage in Encyclopedia(300, 2).passages]
    shown = env.step(f"search[{task.prompt}]")[0]
    for text in (
        "",
        "the",
        task.prompt,
        shown,
        *names[:-1],
        ", ".join(names),
        f"{names[-1]} or {names[0]}",
        " ".join(titles),
        names[-1][:-1],
    ):
        env.restore(place)
        assert env.step(ToolCall("answer", {"text": text}))[1:3] == (0.0, True), text
        assert env.verify() == 0.0


def test_the_best_passage_comes_first_and_ties_in_order() -> None:
    index = Index(
        Passage(str(number), *each)
        for number, each in enumerate(
            [
                ("Otto", "Otto met Ada Birch, and Ada Birch met Otto."),
                ("Ada Birch", "A painter of boats."),
                ("Ben", "He paints rivers."),
                ("Eva", "He paints rivers."),
            ]
        )
    )
    assert [each.id for each in index.search("Who is Ada Birch?", 5)] == ["1", "0"]
    assert [each.id for each in index.search("painting", 5)] == ["2", "3"]
    assert [each.id for each in index.search("painting", 1)] == ["2"]
    assert index.search("zebra", 5) == []
    # A query that consists of stop words is searched as it is.
    assert [each.id for each in index.search("and", 5)] == ["0"]


def test_files_of_ones_own_are_searched_and_asked(tmp_path: Path) -> None:
    asked: list[dict[str, object]] = [
        {"question": f"What is the capital of Norway, number {number}?", "answers": ["Oslo", "the city of Oslo"]}
        for number in range(60)
    ]
    options = files(tmp_path, [NORWAY, {"id": "b", "title": "Peru", "text": "Its capital is Lima."}], asked + asked)
    env, other = make_env("qa", options), make_env("qa", options)
    own = OwnFiles(Path(str(options["corpus"])), Path(str(options["questions"])))
    sizes = {split: len(own._tasks[split]) for split in SPLITS}
    assert sum(sizes.values()) == 60
    assert sizes["train"] > 30 > sizes["validation"] > 0 < sizes["test"]
    task = env.tasks("train", 1)[0]
    report = check_env(env, task, other=other)
    assert report.passed, report.violations
    assert report.branches > 3
    assert check_tasks(env, 4) == []
    env.reset(options={"task": task})
    assert env.step("search[Norway]")[0] == "Norway: Its capital is Oslo."
    player = env.demonstrator(0.0)
    assert player is not None
    assert player.act(random.Random(0)) == ("", f"search[{task.prompt}]")
    assert env.step(f"search[{task.prompt}]")[0].startswith("Norway: Its capital is Oslo.")
    assert env.step(player.act(random.Random(0))[1])[1] == 1.0
    with pytest.raises(UserError, match=r"train questions 0 to 1000 are asked for, but .*questions\.jsonl has \d+"):
        env.tasks("train", 1000)
