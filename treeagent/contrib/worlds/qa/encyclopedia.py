"""A generated encyclopedia of people, towns, companies and books that refer to each other, and questions about it.

It has three parts without references between them, one for each split: no article is the subject, an intermediate step
or the answer of questions of two splits. All parts are in one corpus.
"""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic_core import to_jsonable_python

from treeagent.contrib.worlds.qa.files import Hop, Question
from treeagent.contrib.worlds.qa.index import Passage
from treeagent.types import SPLITS, Split, Task, UserError

Kind = Literal["person", "town", "company", "book"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation from the subject of an article to another entity. Only that article states it."""

    name: str
    object: Kind | Literal["river"]
    sentences: tuple[str, ...]
    nouns: tuple[str, ...]
    """Phrases that stand for the object in a longer question."""
    questions: tuple[str, ...]
    """Questions that ask for the object."""


_ABOUT: Mapping[Kind, tuple[Relation, ...]] = {
    "person": (
        Relation(
            "birthplace",
            "town",
            ("Born in {}.", "A native of {}.", "Grew up in {}, the place of birth."),
            ("the birthplace of {}", "the town where {} was born"),
            ("Where was {} born?", "What is the birthplace of {}?"),
        ),
        Relation(
            "employer",
            "company",
            ("Works for {}.", "Employed by {}.", "Holds a post at {}."),
            ("the employer of {}", "the company that employs {}"),
            ("Which company does {} work for?", "What is the employer of {}?"),
        ),
        Relation(
            "teacher",
            "person",
            ("Studied under {}.", "A pupil of {}.", "Learned the trade from {}."),
            ("the teacher of {}", "the person who taught {}"),
            ("Who taught {}?", "Who was the teacher of {}?"),
        ),
    ),
    "town": (
        Relation(
            "mayor",
            "person",
            ("Its mayor is {}.", "{} presides over the town hall.", "Governed by {}."),
            ("the mayor of {}", "the head of the town hall of {}"),
            ("Who is the mayor of {}?", "Who governs {}?"),
        ),
        Relation(
            "river",
            "river",
            ("Lies on the {}.", "The {} flows through it.", "Built on the banks of the {}."),
            ("the river of {}", "the river that flows through {}"),
            ("Which river flows through {}?", "On which river does {} lie?"),
        ),
    ),
    "company": (
        Relation(
            "founder",
            "person",
            ("Founded by {}.", "{} set it up.", "Goes back to {}, who started it."),
            ("the founder of {}", "the person who founded {}"),
            ("Who founded {}?", "Who is the founder of {}?"),
        ),
        Relation(
            "seat",
            "town",
            ("Based in {}.", "Its head office is in {}.", "Run from {}."),
            ("the seat of {}", "the town where {} is based"),
            ("Where is {} based?", "In which town is the seat of {}?"),
        ),
    ),
    "book": (
        Relation(
            "author",
            "person",
            ("Written by {}.", "{} wrote it.", "From the pen of {}."),
            ("the author of {}", "the writer of {}"),
            ("Who wrote {}?", "Who is the author of {}?"),
        ),
        Relation(
            "setting",
            "town",
            ("Set in {}.", "The story takes place in {}.", "All its scenes are laid in {}."),
            ("the setting of {}", "the town where {} is set"),
            ("Where is {} set?", "In which town does {} take place?"),
        ),
    ),
}
"""The relations that an article states, by its kind."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+", text))


_GIVEN = _words(
    "Ada Ben Cleo Dan Eva Finn Gina Hugo Iris Jon Kim Leo Mia Ned Olga Paul Rosa Sam Tess Uma Vera Will Xenia Yuri Zoe "
    "Alan Beth Carl Dora Emil Flora Glen Hanna Igor Jill Karl Lena Mark Nora Otto"
)
_FAMILIES = _words(
    "Abbot Baker Carter Dyer Ellis Fisher Glover Hunter Irwin Jarvis Keller Lambert Mason Norris Osborn Potter Quill "
    "Reeve Sawyer Turner Upton Vance Weaver Yates Archer Bishop Cooper Draper Ewing Foster Gibson Harper Ingram Jensen "
    "Knight Lowell Miller Nolan Parker Ramsey Sutton Tanner Walker Young Barlow Cutler Dalton Porter"
)
_TOWN_MARKS = _words(
    "North South East West Upper Lower Old New Great Little Long High Saint Royal Inner Outer Deep Far Near Middle"
)
_TOWNS = _words(
    "Norwick Selford Ashby Bramouth Calstead Dunton Elden Farmere Galbury Holmgate Iverwell Kelwick Lanford Marby "
    "Ockmouth Penstead Rosden Sandmere Thornbury Ulgate Varwell Weswick Yarford Brinby Cormouth Dalstead Everton "
    "Fenden Grimmere Harbury Loxgate Morwell Ottwick Priorford Rudby Stanmouth Tolstead Umberton Vexden Wynmere"
)
_COLOURS = _words(
    "Amber Silver Crimson Hollow Quiet Bitter Distant Frozen Golden Hidden Iron Jade Lost Marble Narrow Open Paper "
    "Restless Scarlet Tender Velvet Wild Yellow Broken Copper Dusty Endless Faded Gentle Humble"
)
_NOUNS = _words(
    "Tide Orchard Lantern Mirror Garden Harvest Compass Bridge Winter Signal Letter Window Shadow Island Feather "
    "Thread Kingdom Valley Station Promise Echo Candle Meadow Stranger Voyage Summer Circle Anchor Ladder Fountain"
)
_TRADES = _words(
    "Glass Mills Foundry Press Rail Shipping Textiles Brewing Optics Timber Ceramics Mining Paints Motors Clocks Tools"
)
_RIVERS = _words(
    "Avel Bruna Corve Dessa Erin Fyle Gorna Hesk Isel Jorra Kenna Lorva Mosa Nevra Orla Pesk Quen Rilla Sorna Tamor "
    "Ursa Velna Wesla Xara Yssol Zorn Arnel Bovey Carra Dovra"
)
_NAMES: Mapping[Kind, tuple[Sequence[str], Sequence[str]]] = {
    "person": (_GIVEN, _FAMILIES),
    "town": (_TOWN_MARKS, _TOWNS),
    "company": (_FAMILIES, _TRADES),
    "book": (_COLOURS, _NOUNS),
}
"""First and last words of names. Names of every split use the same words, so that a small model can spell them all."""
_FIRST_SENTENCES: Mapping[Kind, tuple[str, ...]] = {
    "person": ("A painter.", "A chemist.", "A pilot.", "A singer.", "A judge.", "A surveyor."),
    "town": ("A market town.", "A harbour town.", "A town in the hills.", "A town of weavers."),
    "company": ("A family business.", "A firm of forty people.", "A company with a long history."),
    "book": ("A novel.", "A thriller.", "A book for children.", "A prize-winning novel."),
}
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
        """Return questions ``start`` to ``start + count`` of a split."""
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
    """Return entities by name, with facts drawn among ``names``."""
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
    return " ".join((rng.choice(_FIRST_SENTENCES[entity.kind]), *sentences))


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
