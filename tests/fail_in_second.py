"""Work of several processes in which the second one fails, while the first waits for it."""

from typing import Any

from torch import distributed

from treeagent.pipeline.metrics import Emit
from treeagent.types import UserError


def fail_in_second(sentence: str, emit: Emit) -> dict[str, Any]:
    if distributed.get_rank():
        raise UserError(sentence)
    distributed.barrier()
    return {}
