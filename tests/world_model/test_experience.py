"""The experience model as a dynamics, with writers whose answers are scripted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from shop_steps import PAGE, RESULTS, shop_steps

from treeagent.generators.turn import ReAct, make_grammar
from treeagent.types import Action, Message, State, Task, Transition, Unanswered
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.wording import Wording

TASK = Task("t", "find a red lamp under $10")
START = State(TASK, (Message("user", f"{TASK.prompt}\nsearch page"),))
ANSWERS = {
    "reset": "Why: r\nOutcome: continues, reward 0\nObservation: search page",
    "search[lamp]": f"Why: r\nOutcome: continues, reward 0\nObservation: {RESULTS}",
    "click[1]": f"Why: r\nOutcome: continues, reward 0\nObservation: {PAGE}",
    "click[9]": "Why: r\nOutcome: invalid, continues, reward 0\nObservation: no 9 on this page",
    "click[buy now]": "Why: r\nOutcome: terminated, reward 1\nObservation: order placed",
    "click[rich]": "Why: r\nOutcome: terminated, reward 7\nObservation: order placed",
    "click[babble]": "You win!",
}


def act(call: str) -> Action:
    return ReAct().read(f"Thought: I will surely win\nAction: {call}")


@dataclass
class Script:
    """Answers by the action alone."""

    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    asked: list[Sequence[tuple[Message, ...]]] = field(default_factory=list)

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str]:
        self.asked.append(prompts)
        return [self.answers[prompt[-1].content.rpartition("Action: ")[2]] for prompt in prompts]


def model(script: Script | None = None, /, **settings: object) -> ExperienceModel:
    return ExperienceModel(script or Script(), Wording(), **{"max_steps": 5, **settings})  # type: ignore[arg-type]


def play(model: ExperienceModel, *calls: str, start: State = START) -> list[Transition]:
    async def steps() -> list[Transition]:
        made: list[Transition] = []
        for call in calls:
            made.append(await model.step(made[-1].state if made else start, act(call)))
        return made

    return asyncio.run(steps())


def test_steps_are_imagined_as_written() -> None:
    first, second, last = play(model(), "search[lamp]", "click[9]", "click[buy now]")
    assert first.state.messages[-1].content == RESULTS
    assert first.state.messages[-2].content == act("search[lamp]").text
    assert (first.reward, first.terminated, first.origin, first.invalid, first.cost) == (0, False, "imagined", False, 0)
    assert (second.invalid, second.reward, second.state.messages[-1].content) == (True, 0, "no 9 on this page")
    assert (last.terminated, last.truncated, last.reward) == (True, False, 1)


def test_a_task_opens_in_imagination() -> None:
    assert asyncio.run(model().reset(TASK)) == START
    silent = model()
    assert isinstance(silent.writer, Script)
    silent.writer.answers["reset"] = "hello"
    with pytest.raises(Unanswered, match="the opening of task 't' cannot be imagined: the answer 'hello'"):
        asyncio.run(silent.reset(TASK))


@pytest.mark.parametrize("call", ["click[babble]", "click[rich]"])
def test_an_unreadable_answer_is_counted_and_worth_nobody_knows_what(call: str) -> None:
    made = model()
    (transition,) = play(made, call)
    assert transition.reward is None
    assert (transition.truncated, transition.invalid, transition.terminated) == (True, True, False)
    assert transition.state.messages[-1].content.startswith("Unanswered: ")
    assert transition.error


def test_what_is_earned_on_the_way_counts_within_the_range_of_returns() -> None:
    def answers(on_the_way: str, at_the_end: str) -> dict[str, str]:
        return ANSWERS | {
            "search[lamp]": f"Why: r\nOutcome: continues, reward {on_the_way}\nObservation: {RESULTS}",
            "click[buy now]": f"Why: r\nOutcome: terminated, reward {at_the_end}\nObservation: order placed",
        }

    def rewards(on_the_way: str, at_the_end: str) -> list[float | None]:
        made = ExperienceModel(Script(answers(on_the_way, at_the_end)), Wording(), max_steps=5)
        return [transition.reward for transition in play(made, "search[lamp]", "click[1]", "click[buy now]")]

    assert rewards("0.25", "0.75") == [0.25, 0, 0.75]
    assert rewards("0.25", "1") == [0.25, 0, None]
    assert rewards("0.334", "0.667") == [0.334, 0, 1 - 0.334]  # both rewards were rounded
    assert rewards("0.333", "0.666") == [0.333, 0, 0.666]  # not exact enough to be a success


def test_steps_of_one_batch_are_one_call_of_the_writer() -> None:
    made, calls = model(), ["search[lamp]", "click[1]", "click[9]"]

    async def batch() -> list[Transition]:
        return list(await asyncio.gather(*(made.step(START, act(call)) for call in calls)))

    heard = [transition.state.messages[-1].content for transition in asyncio.run(batch())]
    assert all(text in ANSWERS[call] for text, call in zip(heard, calls, strict=True))
    assert isinstance(made.writer, Script) and [len(prompts) for prompts in made.writer.asked] == [3]


@pytest.mark.parametrize("format", ["react", "tools"])
def test_a_world_model_reads_calls_and_no_thoughts_in_any_format(format: str) -> None:
    grammar = make_grammar(format)
    writer = Script(ANSWERS | {'click {"place": 1}': ANSWERS["click[1]"]})
    made = ExperienceModel(writer, Wording(), max_steps=5, format=format)
    search = grammar.read(grammar.write("I will surely win", "search[lamp]"))
    click = grammar.read(grammar.write("I will surely win", "click[1]"))

    async def episode() -> None:
        await made.step((await made.step(START, search)).state, click)

    asyncio.run(episode())
    asked = writer.asked[-1][0][-1].content
    assert f"search page\nAction: search[lamp]\n{RESULTS}" in asked and "surely" not in asked


def test_the_form_of_answers_holds_for_every_real_step() -> None:
    """Answers written by rule reproduce the real step."""
    steps = shop_steps(20)
    wording = Wording()
    for one in steps:
        writer = Script({one.action: wording.target(one)})
        made = ExperienceModel(writer, wording, max_steps=99)
        task = Task("t", one.history[0].content)
        start = State(task, (Message("user", f"{task.prompt}\n{one.history[1].content}"), *one.history[2:]))
        after = asyncio.run(made.step(start, Action(one.action, one.action)))
        assert (after.state.messages[-1].content, after.terminated, after.invalid) == (
            one.observation, one.terminated, one.invalid,
        )  # fmt: skip
        assert after.reward == pytest.approx(one.reward, abs=1e-3)
