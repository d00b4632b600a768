"""Lines of reasoning written by rule, which take the place of the model's reasoning in training (R* in DreamGym's
equation 5)."""

import re
from collections.abc import Sequence

import orjson

from treeagent.world_model.transition import Experience

_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_AMOUNT = re.compile(r"([$¢£¤¥\u20a0-\u20cf])(\d+(?:\.\d+)?)")
"""An amount of money in any currency: its sign and its number."""
_ITEM = re.compile(rf"\d+(?:[.,]\d+)* [^\W\d]\w*|{_WORD.pattern}")
"""A word, or a number with its unit: "2 meter" is one item, and "1 meter" does not match it."""


def trace(one: Experience) -> str:
    """One line of short statements about a step: which line of the page the action names; whether the observation is
    an earlier page again, an addition to this page, or a new page; and, for a page of several lines or a step with a
    reward or an end, the state of each item of the task."""
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
    named = target_line(one.seen, one.action) or "nothing shown"
    parts = [f"names {named}", "refused" if one.invalid else _change(one)]
    return " . ".join([*parts, _item_states(one)] if with_items else parts)


def affects_return(one: Experience) -> bool:
    """Whether a step ends the task or has a reward."""
    return one.terminated or bool(one.reward)


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
    """Each item of the task: "done" if an action since the last page has named it, else "shown" if that page shows it,
    else "missing". Then the first amounts of the page and the task, if they have the same currency."""
    task, page, done = one.history[0].content, "", list[list[str]]()
    for message in reversed(one.history[1:]):
        if message.role == "assistant":
            done.append(words(argument(message.content)))
        elif "\n" in message.content:
            page = message.content
            break
    else:
        done = []
    lines, states = [words(line) for line in page.splitlines()], list[str]()
    for item in dict.fromkeys(_ITEM.findall(_AMOUNT.sub("", task.lower()))):
        shown = "shown" if any(_holds(line, words(item)) for line in lines) else "missing"
        states.append(f"{item} {'done' if any(_holds(call, words(item)) for call in done) else shown}")
    found, limit = _AMOUNT.search(page), _AMOUNT.search(task)
    if found is None or limit is None or found[1] != limit[1]:
        return " ".join(states)
    price, most = float(found[2]), float(limit[2])
    relation = "below" if price < most else "above" if price > most else "equals"
    return f"{' '.join(states)} , {found[0]} {relation} {limit[0]}"
