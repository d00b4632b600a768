"""A server that acts as a judge with scripted replies."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from openai_server import OpenAIServer, serving

from treeagent.contrib.judging.judge import HACKED

Answers = Callable[[str, str], bool]
"""Maps the text of the prompt and a question to yes or no."""


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


def answering(answers: Answers) -> Callable[[str], str]:
    """A reply with one line for each numbered question, in order."""

    def reply(prompt: str) -> str:
        asked = re.findall(r"^(\d+)\. (.*)$", prompt, re.MULTILINE)
        return "\n".join(f"{number}: {'yes' if answers(prompt, question) else 'no'}" for number, question in asked)

    return reply


def says(value: bool, hacked: bool = False) -> Callable[[str], str]:
    """The same answer to every item."""
    return answering(lambda prompt, question: hacked if question == HACKED else value)
