"""The OpenAI protocol over our own generator, with vLLM's extensions, and the ways in which servers fail."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from treeagent.generators.base import Sample
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.types import Message

Body = dict[str, Any]


@dataclass
class OpenAIServer:
    """What it serves, and how it misbehaves."""

    generator: LocalGenerator
    chat: ChatFormat
    model: str
    context: int
    token_ids: bool = True
    raw_logprobs: bool = False
    """Without the temperature, as vLLM's are by default."""
    most_choices: int = 1 << 30
    """In one answer."""
    key: str = ""
    """The one that it accepts; empty for any."""
    fault: Callable[[Body], int | str | float | None] = lambda body: None
    """A status, a body or seconds to wait, instead of the answer."""
    asked: list[Body] = field(default_factory=list[Body])
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def completions(self, body: Body) -> Body:
        prompt, temperature = tuple(body["prompt"]), body["temperature"]
        drawn = self._draw(prompt, body)
        choices: list[Body] = []
        for sample in drawn:
            told = {
                "tokens": [f"token_id:{token}" for token in sample.token_ids],
                "token_logprobs": self._raw(prompt, sample) if self.raw_logprobs else list(sample.logprobs),
                "top_logprobs": [self._top(prompt, 1.0 if self.raw_logprobs else temperature, body)],
            }
            choice: Body = {"index": len(choices), "text": "", "finish_reason": "stop", "logprobs": told}
            choices.append(choice | ({"token_ids": list(sample.token_ids)} if self.token_ids else {}))
        return {"id": "0", "object": "text_completion", "choices": choices, "usage": _usage(prompt, drawn)}

    def chat_completions(self, body: Body) -> Body:
        messages = tuple(Message(row["role"], row["content"], self._ids(row)) for row in body["messages"])
        prompt = self.chat.prompt_ids(messages)
        drawn = self._draw(prompt, body)
        texts = [self.chat.decode(sample.token_ids) for sample in drawn]
        choices = [
            {"index": place, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for place, text in enumerate(texts)
        ]
        return {"id": "0", "object": "chat.completion", "choices": choices, "usage": _usage(prompt, drawn)}

    def _ids(self, row: Body) -> tuple[int, ...]:
        return self.chat.encode_action(row["content"]) if row["role"] == "assistant" else ()

    def _draw(self, prompt: tuple[int, ...], body: Body) -> list[Sample]:
        [drawn] = self.generator.sample(
            [prompt],
            min(body["n"], self.most_choices),
            [body["seed"]],
            stop_id=body.get("stop_token_ids", [self.chat.stop_id])[0],
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
        )
        return drawn

    def _top(self, prompt: tuple[int, ...], temperature: float, body: Body) -> dict[str, float]:
        """Of the first token."""
        logits = self.generator.next_logprobs([prompt], range(len(self.chat.tokenizer)))[0]
        logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
        wanted = body.get("logprob_token_ids") or logprobs.topk(max(body["logprobs"], 1)).indices.tolist()
        return {f"token_id:{token}": float(logprobs[token]) for token in wanted}

    def _raw(self, prompt: tuple[int, ...], sample: Sample) -> list[float]:
        ids = sample.token_ids
        return [float(self.generator.next_logprobs([prompt + ids[:i]], [ids[i]])) for i in range(len(ids))]


def _usage(prompt: tuple[int, ...], drawn: list[Sample]) -> Body:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": sum(len(sample.token_ids) for sample in drawn),
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": len(prompt) // 2},
    }


@contextmanager
def serving(server: OpenAIServer) -> Iterator[OpenAIServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listed = {"id": server.model, "object": "model", "max_model_len": server.context}
            self.answer(200, json.dumps({"object": "list", "data": [listed]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.asked.append(body)
                server.in_flight += 1
                server.most_in_flight = max(server.in_flight, server.most_in_flight)
            fault = server.fault(body)
            if isinstance(fault, float):
                time.sleep(fault)
            try:
                if isinstance(fault, int):
                    self.answer(fault, json.dumps({"error": {"message": "not now"}}))
                elif isinstance(fault, str):
                    self.answer(200, fault)
                else:
                    work = server.chat_completions if self.path.endswith("/chat/completions") else server.completions
                    with server.lock:
                        answer = work(body)
                    self.answer(200, json.dumps(answer))
            finally:
                with server.lock:
                    server.in_flight -= 1

        def answer(self, status: int, text: str) -> None:
            if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
                status, text = 401, json.dumps({"error": {"message": "wrong key"}})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("Retry-After-Ms", "20")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        # A client that has given up waiting is no news.
        http.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
