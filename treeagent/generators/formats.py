"""Choose the grammar of a policy's turns: by the format that the user sets and, for a model's own tool calls, by its
chat template."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from treeagent.generators.grammar import Grammar, JsonAction, ReAct, Tool
from treeagent.generators.tag_calls import TagCalls
from treeagent.generators.tool_calls import ToolCalls
from treeagent.types import UserError

Format = Literal["react", "json", "tools"]
_TAGGED_CALL = re.compile(r"<tool_call>\s*<function=")
_IN_JSON = (ToolCalls("hermes"), ToolCalls("mistral"), ToolCalls("llama"))
"""The last syntax has the least distinctive beginning, so it is tried last."""
_WRITES_TOOLS = re.compile(r"\btools\b")


def make_grammar(name: Format, chat_template: str = "", tools: Sequence[Tool] = ()) -> Grammar:
    """The grammar of a format. For "tools", the chat template decides the syntax; without a template it is Hermes.

    Args:
        tools: of the environment. Syntaxes that write numbers like texts need their schemas to read a call.

    Raises:
        UserError: the template writes the tools in a syntax that cannot be read.
    """
    if name != "tools":
        return ReAct() if name == "react" else JsonAction()
    if "[TOOL_CALLS]" in chat_template:
        return ToolCalls("mistral")
    if "<tool_call>" in chat_template and "<arg_key>" not in chat_template:
        return TagCalls.of(tools) if "<parameter=" in chat_template else ToolCalls("hermes")
    if '"parameters"' in chat_template and "<tool_call>" not in chat_template:
        return ToolCalls("llama")
    if tools and _WRITES_TOOLS.search(chat_template):
        raise UserError(
            "the model's chat template writes tool calls in a syntax that policy.format=tools cannot read: set "
            "policy.format to react or json"
        )
    return ToolCalls("hermes")


def written_in(format: Format, turns: Iterable[str], tools: Sequence[Tool] = ()) -> Grammar:
    """The grammar of existing whole turns. The first turn that calls a tool determines the syntax, so no chat template
    is needed. ``tools`` is as for ``make_grammar``."""
    if format != "tools":
        return make_grammar(format)
    for turn in turns:
        for grammar in _IN_JSON:
            if grammar.begins_action(turn):
                return TagCalls.of(tools) if _TAGGED_CALL.search(turn) else grammar
    return ToolCalls()
