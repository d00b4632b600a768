"""A world model's training rows: experiences to token ids, with a loss on the reasoning and on the next state.

L = -log P(R* | s, a, d) - log P(s', r | s, a, d, R*), DreamGym's equation 5: one answer holds both terms, so that the
mask of ordinary supervised fine-tuning is true on all of its tokens and nowhere else.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from treeagent.generators.chat import ChatFormat
from treeagent.world_model.experience import Retriever
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording


class AnswerRow(NamedTuple):
    """The first three fields of a ``TokenRow`` of ``treeagent.views``, which the layers above make of it."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True on the answer's tokens."""


def answer_rows(
    experiences: Sequence[Experience],
    chat: ChatFormat,
    wording: Wording,
    retriever: Retriever | None = None,
    examples: int = 0,
    end_rows: int = 1,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[AnswerRow]:
    """One row an experience, ``end_rows`` of one that ends its episode, with the prompt as ``ExperienceModel`` will
    write it; ``reasons`` are a teacher's, by digest.

    The same state and action are never among the examples of a row, or the model would learn to copy the answer.
    """
    near = _examples(experiences, retriever, examples)
    for one, similar in zip(experiences, near, strict=True):
        prompt = chat.prompt_ids(wording.prompt(one.history, one.action, similar))
        answer = chat.encode_action(wording.target(one, reasons.get(one.digest(), "")))
        row = AnswerRow(one.task_id, prompt + answer, (False,) * len(prompt) + (True,) * len(answer))
        yield from repeat(row, end_rows if one.terminated else 1)


def _examples(
    experiences: Sequence[Experience], retriever: Retriever | None, count: int
) -> Sequence[Sequence[Experience]]:
    if retriever is None or not count:
        return [()] * len(experiences)
    # A few more than wanted: the experience itself is in the buffer, and so may be its repetitions.
    found = retriever.nearest([(one.history, one.action) for one in experiences], count + 2)
    return [
        [other for other in similar if (other.history, other.action) != (one.history, one.action)][:count]
        for one, similar in zip(experiences, found, strict=True)
    ]
