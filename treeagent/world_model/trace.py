"""Reasoning traces written by rule, for want of a teacher: what an action names, what it changes, what the task still
lacks. They stand where a model's own reasoning will stand (R* of DreamGym's equation 5)."""

import re
from collections.abc import Iterator, Sequence

import orjson

from treeagent.types import Message
from treeagent.world_model.transition import Experience

_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_AMOUNT = re.compile(r"[$€£¥](\d+(?:\.\d+)?)")
_ITEM = re.compile(rf"\d+(?:[.,]\d+)* [^\W\d]\w*|{_WORD.pattern}")
"""A word, or a number with what it counts: of "2 meter" neither part says that 1 meter is not meant."""


def trace(one: Experience) -> str:
    """One line of short statements, a pure function of the experience.

    Says in turn which line of the page the action names; whether the answer is an earlier page again, an addition or a
    new page, and what it shows of an action that names nothing on this one; and, where the agent acts on a page of
    several lines or the step is worth something or ends the task, of each word of the task whether the agent's actions
    on this page have named it, the page shows it or neither, and how the page's first amount of money compares with the
    task's. Only at ends does anything follow from that; before them it is there to be practised. Of how a task begins
    there is nothing to say.
    """
    return "begins" if one.opens else _told(one, account=_counts(one) or "\n" in one.seen)


def reflection(better: Experience, found: str, other: Experience, lost: str) -> str:
    """One line on why an action is better than another that was tried in its place: what each did, and what it came to
    in the end (``found`` and ``lost``). The better action itself is what follows."""
    tried, chosen = (_told(one, account=_counts(one)) for one in (other, better))
    return f"not {other.action} : {tried} , {lost} . better : {chosen} , {found}"


def named(page: str, action: str) -> str:
    """The line of a page that an action names: the first that begins with its argument, else the first that holds it;
    empty where there is none. A number names what it begins: elsewhere it is a price."""
    wanted = words(argument(action))
    lines = [line for line in page.splitlines() if wanted]
    begins = [line for line in lines if words(line)[: len(wanted)] == wanted]
    holds = [line for line in lines if _holds(words(line), wanted)] if not "".join(wanted).isdigit() else []
    return next(iter(begins or holds), "")


def argument(action: str) -> str:
    """What follows an action's first word, brackets aside; of a tool call the arguments' values."""
    _, _, rest = action.strip().partition(" ")
    if rest.startswith("{"):
        try:
            return " ".join(map(str, orjson.loads(rest).values()))
        except (orjson.JSONDecodeError, AttributeError):
            return rest
    bracketed = re.match(r"\w+\s*[\[(](.*)[\])]$", action.strip(), re.DOTALL)
    return bracketed[1] if bracketed else rest


def words(text: str) -> list[str]:
    """Words and numbers, in lower case."""
    return _WORD.findall(text.lower())


def _holds(line: Sequence[str], wanted: Sequence[str]) -> bool:
    return any(line[start : start + len(wanted)] == wanted for start in range(len(line)))


def _told(one: Experience, *, account: bool) -> str:
    said = [_naming(one), "refused" if one.invalid else _change(one)]
    return " . ".join([*said, _account(one)] if account else said)


def _counts(one: Experience) -> bool:
    return one.terminated or bool(one.reward)


def _naming(one: Experience) -> str:
    line = named(one.seen, one.action)
    return f"names {line}" if line else "names nothing shown"


def _change(one: Experience) -> str:
    before, after = one.seen.splitlines(), one.observation.splitlines()
    pages = [message.content for message in one.history[1:] if message.role != "assistant"]
    if one.observation in pages:
        return f"again {after[0]}" if after else "again"
    kept = sum(line in before for line in after)
    if kept:
        return f"keeps {kept} , adds {len(after) - kept}"
    wanted = [] if named(one.seen, one.action) else words(argument(one.action))
    shown = [word for word in wanted if word in set(words(one.observation))]
    return f"new , shows {' '.join(shown)}" if shown else "new"


def _account(one: Experience) -> str:
    """What the task names, in turn, each with what became of it since the last page, which is the last observation of
    several lines: one look at the page a word, which a small model learns sooner than three lists. Amounts of money are
    compared instead."""
    page, calls = _since_last_page(one.history)
    task = one.history[0].content
    done, shown = [words(argument(call)) for call in calls], [words(line) for line in page.splitlines()]

    def fate(item: str) -> str:
        wanted = words(item)
        if any(_holds(call, wanted) for call in done):
            return "done"
        return "shown" if any(_holds(line, wanted) for line in shown) else "missing"

    asked = dict.fromkeys(_ITEM.findall(_AMOUNT.sub("", task.lower())))
    return " , ".join([" ".join(f"{item} {fate(item)}" for item in asked), *_comparison(page, task)])


def _comparison(page: str, task: str) -> Iterator[str]:
    """The first amount of the page beside the first one of the task, where both name one."""
    shown, asked = _AMOUNT.search(page), _AMOUNT.search(task)
    if shown and asked:
        less, more = float(shown[1]) < float(asked[1]), float(shown[1]) > float(asked[1])
        yield f"{shown[0]} {'below' if less else 'above' if more else 'equals'} {asked[0]}"


def _since_last_page(history: Sequence[Message]) -> tuple[str, list[str]]:
    """The last page, and the calls made on it."""
    calls: list[str] = []
    for message in reversed(history[1:]):
        if message.role == "assistant":
            calls.append(message.content)
        elif "\n" in message.content:
            return message.content, calls
    return "", calls
