"""Lines of reasoning written by rule, which take the place of the model's reasoning in training (R* in DreamGym's
equation 5)."""

import re
from collections.abc import Iterator, Sequence

import orjson

from treeagent.types import Message
from treeagent.world_model.transition import Experience

_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_AMOUNT = re.compile(r"([$¢£¤¥\u20a0-\u20cf])(\d+(?:\.\d+)?)")
"""An amount of money in any currency: its sign and its number."""
_ITEM = re.compile(rf"\d+(?:[.,]\d+)* [^\W\d]\w*|{_WORD.pattern}")
"""A word, or a number with its unit: "2 meter" is one item, and "1 meter" does not match it."""


def trace(one: Experience) -> str:
    """One line of short statements about a step: which line of the page the action names; whether the observation is
    an earlier page again, an addition to this page, or a new page; and, for a page of several lines or a step with a
    reward or an end, for each word of the task, whether actions have named it ("done"), the page shows it ("shown") or
    neither ("missing"), and how the page's first amount of money compares with the task's."""
    return "begins" if one.opens else describe_step(one, with_items=affects_return(one) or "\n" in one.seen)


def target_line(page: str, action: str) -> str:
    """The line of a page that an action names: the first that begins with the action's argument, or else contains it,
    or else "". A number must be at the start of the line; elsewhere it is a quantity and not a label."""
    target = words(argument(action))
    lines = [line for line in page.splitlines() if target]
    begins = [line for line in lines if words(line)[: len(target)] == target]
    holds = [line for line in lines if _holds(words(line), target)] if not "".join(target).isdigit() else []
    return next(iter(begins or holds), "")


def argument(action: str) -> str:
    """An action's argument: the text after its first word, without brackets; of a tool call in JSON, the values."""
    _, _, rest = action.strip().partition(" ")
    if rest.startswith("{"):
        try:
            return " ".join(map(str, orjson.loads(rest).values()))
        except (orjson.JSONDecodeError, AttributeError):
            return rest
    bracketed = re.match(r"[\w.-]+\s*[\[(](.*)[\])]$", action.strip(), re.DOTALL)
    return bracketed[1] if bracketed else rest


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _holds(line: Sequence[str], target: Sequence[str]) -> bool:
    return any(line[start : start + len(target)] == target for start in range(len(line)))


def describe_step(one: Experience, *, with_items: bool) -> str:
    """What a step names and changes, and with ``with_items`` the state of each item of the task."""
    parts = [_named_line(one), "refused" if one.invalid else _change(one)]
    return " . ".join([*parts, _item_states(one)] if with_items else parts)


def affects_return(one: Experience) -> bool:
    """Whether a step ends the task or has a reward."""
    return one.terminated or bool(one.reward)


def _named_line(one: Experience) -> str:
    line = target_line(one.seen, one.action)
    return f"names {line}" if line else "names nothing shown"


def _change(one: Experience) -> str:
    before, after = one.seen.splitlines(), one.observation.splitlines()
    pages = [message.content for message in one.history[1:] if message.role != "assistant"]
    if one.observation in pages:
        return f"again {after[0]}" if after else "again"
    repeated = sum(line in before for line in after)
    if repeated:
        return f"keeps {repeated} , adds {len(after) - repeated}"
    argument_words = [] if target_line(one.seen, one.action) else words(argument(one.action))
    shown_words = [word for word in argument_words if word in set(words(one.observation))]
    return f"new , shows {' '.join(shown_words)}" if shown_words else "new"


def _item_states(one: Experience) -> str:
    """Each item of the task with its state since the last page (the last observation with several lines), then the
    comparison of amounts."""
    page, calls = _since_last_page(one.history)
    task = one.history[0].content
    done, lines = [words(argument(call)) for call in calls], [words(line) for line in page.splitlines()]

    def item_state(item: str) -> str:
        item_words = words(item)
        if any(_holds(call, item_words) for call in done):
            return "done"
        return "shown" if any(_holds(line, item_words) for line in lines) else "missing"

    items = dict.fromkeys(_ITEM.findall(_AMOUNT.sub("", task.lower())))
    return " , ".join([" ".join(f"{item} {item_state(item)}" for item in items), *_comparison(page, task)])


def _comparison(page: str, task: str) -> Iterator[str]:
    """A comparison of the first amounts of the page and the task, if both have one in the same currency."""
    page_amount, task_amount = _AMOUNT.search(page), _AMOUNT.search(task)
    if page_amount and task_amount and page_amount[1] == task_amount[1]:
        below, above = float(page_amount[2]) < float(task_amount[2]), float(page_amount[2]) > float(task_amount[2])
        yield f"{page_amount[0]} {'below' if below else 'above' if above else 'equals'} {task_amount[0]}"


def _since_last_page(history: Sequence[Message]) -> tuple[str, list[str]]:
    """Return the last page, and the calls made on it, latest first."""
    calls: list[str] = []
    for message in reversed(history[1:]):
        if message.role == "assistant":
            calls.append(message.content)
        elif "\n" in message.content:
            return message.content, calls
    return "", calls
