"""Options of the planning environment."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, ValidationInfo
from pydantic.dataclasses import dataclass

from treeagent.types import Split

DomainName = Literal["blocks", "hanoi", "logistics", "tireworld"]
Files = str | list[str]
"""A folder of problem files, a problem file, or a list of problem files."""

Sizes = int | tuple[int, int]
"""The size of all problems, or the smallest and the largest size."""


_LARGEST, _LONGEST_ROUTE = 20, 30
"""The largest size of a problem, and that of tireworld, whose plans the planner finds fast."""


def _ordered(sizes: Sizes, info: ValidationInfo) -> Sizes:
    least, greatest = (sizes, sizes) if isinstance(sizes, int) else sizes
    largest = _LONGEST_ROUTE if info.data.get("domain") == "tireworld" else _LARGEST
    if not 2 <= least <= greatest <= largest:
        raise ValueError(f"give a size from 2 to {largest}, or the least and the greatest one, such as [2, 8]")
    return sizes


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PlanningOptions:
    """Settings of ``PlanningEnv``. Without files, problems are generated for ``domain``."""

    domain: DomainName = "blocks"
    size: Annotated[Sizes, AfterValidator(_ordered)] = 4
    """Number of blocks, discs or packages, or of roads to the goal. A larger problem needs more actions. ``[2, 8]``
    draws the size of each problem from 2 to 8."""
    domain_file: str | None = None
    """PDDL file of your own domain; set ``problems``, too."""
    problems: Files | dict[Split, Files] | None = None
    """PDDL files of your own problems, or their folder. A hash of the text assigns a tenth of them to validation and a
    tenth to test. To choose the splits, give a table: ``{train = "easy", test = "hard"}``."""
    pddlgym: str | None = None
    """A domain of the package pddlgym, such as "blocks_operator_actions". Its test problems are the test split; a hash
    assigns a tenth of the others to validation."""
    hide: list[str] | None = None
    """Predicates whose facts the agent does not see. By default, these are redundant predicates, such as ``clear``, in
    the generated domains and in pddlgym's blocks and hanoi, and the predicates with which pddlgym says which actions
    may be called."""
    show: Literal["state", "changes"] = "state"
    """What the agent reads after an action: "state" is every fact that holds, "changes" only the facts that the action
    made true or false. If many facts hold, changes are shorter, so that longer plans fit into the model's context."""
    show_commands: bool = False
    """Show the possible actions after each observation."""
