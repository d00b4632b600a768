"""Training rows of a world model: steps as token ids, with a loss on the reasoning and on the next state.

DreamGym's equation 5 is L = -log P(R* | s, a, d) - log P(s', r | s, a, d, R*). An answer contains the reasoning R* and
then the outcome, so this is supervised fine-tuning with the loss on all tokens of the answer.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from treeagent.generators.chat import ChatFormat
from treeagent.world_model.experience import Retriever
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording


class AnswerRow(NamedTuple):
    """The first three fields of a ``treeagent.views.TokenRow``, which this package may not import."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True for the tokens of the answer."""


def answer_rows(
    experiences: Sequence[Experience],
    chat: ChatFormat,
    wording: Wording,
    retriever: Retriever | None = None,
    examples: int = 0,
    end_rows: int = 1,
) -> Iterator[AnswerRow]:
    """Yield one row per experience, with the prompt that ``ExperienceModel`` would write.

    Args:
        retriever: the source of the ``examples`` similar steps in a prompt. Steps with the same state and action are
            excluded, because otherwise the model would learn to copy the answer.
        end_rows: number of copies of the row of a step that ends its episode. Such steps are few but important.
    """
    near = _examples(experiences, retriever, examples)
    for one, similar in zip(experiences, near, strict=True):
        prompt = chat.prompt_ids(chat.with_ids(wording.prompt(one.history, one.action, similar)))
        answer = chat.encode_action(wording.target(one))
        row = AnswerRow(one.task_id, prompt + answer, (False,) * len(prompt) + (True,) * len(answer))
        yield from repeat(row, end_rows if one.terminated else 1)


def _examples(
    experiences: Sequence[Experience], retriever: Retriever | None, count: int
) -> Sequence[Sequence[Experience]]:
    examples: list[Sequence[Experience]] = [()] * len(experiences)
    waiting = list(range(len(experiences))) if retriever is not None and count else []
    # Two more than needed, because the buffer contains the same step, perhaps also with another observation.
    asked = count + 2
    while retriever is not None and waiting:
        places = [(experiences[index].history, experiences[index].action) for index in waiting]
        found = retriever.nearest(places, asked)
        for index, place, similar in zip(waiting, places, found, strict=True):
            examples[index] = [other for other in similar if (other.history, other.action) != place][:count]
        # In a stochastic environment, the same step may be there with many observations.
        waiting = [
            index
            for index, similar in zip(waiting, found, strict=True)
            if len(examples[index]) < count and len(similar) == asked
        ]
        asked *= 2
    return examples
