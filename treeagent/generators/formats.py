"""Choose the grammar of a policy's turns: by the format that the user sets and, for a model's own tool calls, by its
chat template."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from treeagent.generators.grammar import Grammar, JsonAction, ReAct, Tool
from treeagent.generators.tool_calls import TagCalls, ToolCalls
from treeagent.types import UserError

Format = Literal["react", "json", "tools"]
_TAGGED = "<parameter="
"""How a chat template of ``TagCalls`` writes an argument."""
_TAGGED_CALL = re.compile(r"<tool_call>\s*<function=")
_IN_JSON = (ToolCalls("hermes"), ToolCalls("mistral"), ToolCalls("llama"))
"""The last syntax has the least distinctive beginning, so it is tried last."""
_OTHERS = ("<arg_key>", "<|tool_call", "<｜tool▁call", "<|channel|>", "<|START_ACTION|>", "<invoke name=")
"""Parts of calls that cannot be read: of GLM; of Granite 3, Phi-4, LFM2 and Kimi; of DeepSeek; of gpt-oss; of Command;
and of MiniMax."""


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
    if _TAGGED in chat_template:
        return TagCalls.of(tools)
    other = next((mark for mark in _OTHERS if mark in chat_template), "")
    if tools and other and re.search(r"\btools\b", chat_template):
        raise UserError(
            f"the model's chat template writes tool calls with {other!r}, which policy.format=tools cannot read: set "
            "policy.format to react or json"
        )
    llama = '"parameters"' in chat_template and "<tool_call>" not in chat_template
    return ToolCalls("llama" if llama else "hermes")


def written_in(format: Format, turns: Iterable[str]) -> Grammar:
    """The grammar of existing turns. The first turn that calls a tool determines the syntax, so no chat template is
    needed."""
    if format != "tools":
        return make_grammar(format)
    for turn in turns:
        for grammar in _IN_JSON:
            if grammar.begins_action(turn):
                return TagCalls() if _TAGGED_CALL.search(turn) else grammar
    return ToolCalls()
