"""A generated encyclopedia of people, towns, companies and books that refer to each other, and questions about it.

It has three parts without references between them, one for each split: no article is the subject, an intermediate step
or the answer of questions of two splits. All parts are in one corpus.
"""

import itertools
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, get_args

from pydantic_core import to_jsonable_python

from treeagent.contrib.worlds.qa.corpus import Hop, Passage, Question
from treeagent.types import SPLITS, Split, Task, UserError

Kind = Literal["person", "town", "company", "book"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation from the subject of an article to another entity. Only that article states it."""

    name: str
    object: Kind | Literal["river"]
    sentences: Sequence[str]
    nouns: Sequence[str]
    """Phrases that stand for the object in a longer question."""
    questions: Sequence[str]
    """Questions that ask for the object."""


_WORDS: Mapping[str, Any] = tomllib.loads(
    resources.files(__package__).joinpath("words.toml").read_text(encoding="utf-8")
)
_ABOUT: Mapping[Kind, tuple[Relation, ...]] = {
    kind: tuple(Relation(**each) for each in _WORDS[kind]) for kind in get_args(Kind)
}
"""The relations that an article states, by its kind."""
_GIVEN, _FAMILIES, _TOWN_MARKS, _TOWNS, _COLOURS, _NOUNS, _TRADES, _RIVERS = (
    tuple(_WORDS[name].split())
    for name in ("given", "families", "town_marks", "towns", "colours", "nouns", "trades", "rivers")
)
_NAMES: Mapping[Kind, tuple[Sequence[str], Sequence[str]]] = {
    "person": (_GIVEN, _FAMILIES),
    "town": (_TOWN_MARKS, _TOWNS),
    "company": (_FAMILIES, _TRADES),
    "book": (_COLOURS, _NOUNS),
}
"""First and last words of names. Names of every split use the same words, so that a small model can spell them all."""
_DISTRACTORS = 10
"""One article in this many is a distractor: it is about a name as such, and no question needs it."""


@dataclass(frozen=True, slots=True)
class Entity:
    """The subject of an article, with the facts that the article states."""

    kind: Kind
    name: str
    facts: Mapping[str, str]
    """Name of the object of each relation."""


class Encyclopedia:
    """Articles, and questions of ``hops`` hops about them. Equal arguments give equal articles and questions."""

    def __init__(self, articles: int, hops: int) -> None:
        rng = random.Random(f"encyclopedia {articles}")
        distractors = articles // _DISTRACTORS
        names = {kind: _draw_names(kind, (articles - distractors) // len(_ABOUT), rng) for kind in _ABOUT}
        self._parts = {
            split: _related({kind: names[kind][number :: len(SPLITS)] for kind in _ABOUT}, rng)
            for number, split in enumerate(SPLITS)
        }
        entities = [entity for part in self._parts.values() for entity in part.values()]
        titles_and_texts = [(entity.name, _article(entity, rng)) for entity in entities]
        words = [*_FAMILIES, *_GIVEN, *_COLOURS, *_NOUNS, *_TRADES]
        for number in range(distractors):
            word, other = words[number % len(words)], rng.choice(words)
            titles_and_texts.append((word, f"{word} is a name. Many have it, as others have {other}."))
        rng.shuffle(titles_and_texts)
        self._hops = hops
        self._chains: dict[Split, list[_Chain]] = {}
        self.passages = tuple(Passage(str(number), *each) for number, each in enumerate(titles_and_texts))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if split not in self._chains:
            part = self._parts[split]
            chains = [chain for entity in part.values() for chain in _chains(part, entity, self._hops)]
            random.Random(f"order {split} {self._hops}").shuffle(chains)
            self._chains[split] = chains
        chains = self._chains[split]
        if start + count > len(chains):
            raise UserError(
                f"{split} questions {start} to {start + count} are asked for, but there are {len(chains)} on "
                f"{len(self.passages)} articles: raise articles or difficulty"
            )
        return [self._task(split, number, chains[number]) for number in range(start, start + count)]

    def _task(self, split: Split, number: int, chain: "_Chain") -> Task:
        name = f"qa{self._hops}-{len(self.passages)}-{split}-{number}"
        rng = random.Random(f"wording {name}")
        phrase = chain[0][0]
        for _, relation, _ in chain[:-1]:
            phrase = rng.choice(relation.nouns).format(phrase)
        _, last, answer = chain[-1]
        answers = (answer, f"{answer} River", f"River {answer}") if last.object == "river" else (answer,)
        hops = tuple(Hop(subject, relation.name, found) for subject, relation, found in chain)
        prompt = rng.choice(last.questions).format(phrase)
        return Task(name, prompt, split, number, to_jsonable_python(Question(answers, hops)))


_Chain = tuple[tuple[str, Relation, str], ...]
"""A sequence of (subject, relation, object). The object of each is the subject of the next."""


def _draw_names(kind: Kind, count: int, rng: random.Random) -> list[str]:
    """Draw names of two words, or of three words if there are not enough with two."""
    first, last = _NAMES[kind]
    pools = (first, last) if count <= len(first) * len(last) else (first, first, last)
    return rng.sample([" ".join(words) for words in itertools.product(*pools)], count)


def _related(names: Mapping[Kind, Sequence[str]], rng: random.Random) -> dict[str, Entity]:
    objects: dict[str, Sequence[str]] = {"river": _RIVERS}
    objects.update(names.items())
    return {
        name: Entity(kind, name, {each.name: _other_name(objects[each.object], name, rng) for each in _ABOUT[kind]})
        for kind in _ABOUT
        for name in names[kind]
    }


def _other_name(names: Sequence[str], name: str, rng: random.Random) -> str:
    while (other := rng.choice(names)) == name:
        pass
    return other


def _article(entity: Entity, rng: random.Random) -> str:
    sentences = [rng.choice(each.sentences).format(entity.facts[each.name]) for each in _ABOUT[entity.kind]]
    rng.shuffle(sentences)
    return " ".join((rng.choice(_WORDS["first_sentences"][entity.kind]), *sentences))


def _chains(part: Mapping[str, Entity], entity: Entity, hops: int) -> Iterator[_Chain]:
    """Yield the chains of ``hops`` facts that start at an article and visit no article twice."""
    for relation in _ABOUT[entity.kind]:
        found = entity.facts[relation.name]
        link = (entity.name, relation, found)
        if hops == 1:
            yield (link,)
        elif found in part:
            for rest in _chains(part, part[found], hops - 1):
                if entity.name not in (each[2] for each in rest):
                    yield (link, *rest)
