"""A server that acts as a judge with scripted replies."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from openai_server import OpenAIServer, serving


@dataclass
class JudgeServer(OpenAIServer):
    """Chat completions with scripted replies."""

    reply: Callable[[str], str] = lambda prompt: ""
    """Maps all texts of the conversation to the reply."""

    def chat_completions(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self.reply("\n\n".join(row["content"] for row in body["messages"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        return {"id": "0", "object": "chat.completion", "choices": [choice], "usage": usage}


@contextmanager
def judge_server(reply: Callable[[str], str]) -> Iterator[JudgeServer]:
    nothing = cast(Any, None)
    with serving(JudgeServer(nothing, nothing, "judge", 4096, reply=reply)) as server:
        yield cast(JudgeServer, server)


def says(value: bool) -> Callable[[str], str]:
    """The same answer to every item."""

    def reply(prompt: str) -> str:
        asked = re.findall(r"^(\d+)\. ", prompt, re.MULTILINE)
        return "\n".join(f"{number}: {'yes' if value else 'no'}" for number in asked)

    return reply
