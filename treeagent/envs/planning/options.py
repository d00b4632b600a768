"""The settings of planning."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.types import Split

DomainName = Literal["blocks", "hanoi", "logistics", "tireworld"]
Files = str | list[str]
"""A folder of problem files, or problem files."""

Sizes = int | tuple[int, int]
"""A size of problems, or the least and the greatest one."""


def _ordered(sizes: Sizes) -> Sizes:
    least, greatest = (sizes, sizes) if isinstance(sizes, int) else sizes
    if not 2 <= least <= greatest <= 20:
        raise ValueError("give a size from 2 to 20, or the least and the greatest one, such as [2, 8]")
    return sizes


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PlanningOptions:
    """Settings of ``PlanningEnv``. Problems are generated for ``domain``, unless files are named."""

    domain: DomainName = "blocks"
    size: Annotated[Sizes, AfterValidator(_ordered)] = 4
    """Blocks, discs, packages, or roads to the goal. More of them need more actions. ``[2, 8]`` draws the size of each
    problem from 2 to 8."""
    domain_file: str | None = None
    """A PDDL file of your own domain; its problems are those of ``problems``."""
    problems: Files | dict[Split, Files] | None = None
    """PDDL files of your own problems, or the folder that holds them. A hash of the text puts a tenth into validation
    and a tenth into test. To choose the splits, give a table: ``{train = "easy", test = "hard"}``."""
    pddlgym: str | None = None
    """A domain of the package pddlgym, such as "blocks_operator_actions". Its test problems are the split test, and a
    hash puts a tenth of the others into validation."""
    hide: list[str] | None = None
    """Predicates whose facts the agent does not read. By default, in the generated domains and in pddlgym's blocks and
    hanoi, those that follow from others, such as ``clear``; and those by which pddlgym says what may be called."""
    show: Literal["state", "changes"] = "state"
    """What the agent reads after an action: "state" is every fact that holds, "changes" only those that the action made
    true or false. Changes are short where many facts hold, so that long plans fit into the model's context."""
    show_commands: bool = False
    """Show the possible actions after each observation."""
