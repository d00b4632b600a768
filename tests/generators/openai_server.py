"""The OpenAI protocol over treeagent's own generator, with the extensions of vLLM, and ways in which servers fail."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from typing import Any

import torch
from toy_llama import next_logprobs

from treeagent.agent.checkpoint import load_checkpoint, load_tokenizer
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.generators.structured import Form
from treeagent.types import Message

Body = dict[str, Any]
Fault = int | str | float | Body
"""An HTTP status, a body, seconds to wait, or the error message of a status 400."""

_LOADING = threading.Lock()
"""Two threads of a process must not load models at once: transformers then forgets to tie the output layer."""


@dataclass
class OpenAIServer:
    """What the server serves, and how it misbehaves."""

    generator: LocalGenerator
    chat: ChatFormat
    model: str
    context: int
    token_ids: bool = True
    raw_logprobs: bool = False
    """Whether log-probabilities ignore the temperature, as vLLM's do by default."""
    loads_adapters: bool = False
    """Whether it has vLLM's ``load_lora_adapter``."""
    adapters: dict[str, LocalGenerator] = field(default_factory=dict[str, LocalGenerator])
    """Adapters loaded so far, by name."""
    loaded: list[str] = field(default_factory=list[str])
    """Folders of the checkpoints that it was asked to load."""
    structured: bool = False
    """Whether it knows vLLM's ``structured_outputs``."""
    fault: Callable[[Body], "Fault | None"] = lambda body: None
    """Returns a fault to send instead of the answer, or None."""
    asked: list[Body] = field(default_factory=list[Body])
    url: str = ""
    kill: Callable[[], None] = lambda: None
    """Ends the server at once, including answers under way."""
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
        usage = _usage(prompt, drawn)
        answer = {"id": "0", "object": "text_completion", "model": body["model"]}
        return answer | {"choices": choices, "usage": usage}

    def models(self) -> list[Body]:
        whole = {"id": self.model, "object": "model", "max_model_len": self.context}
        return [whole, *({"id": name, "object": "model", "parent": self.model} for name in self.adapters)]

    def load(self, folder: str, name: str | None = None) -> None:
        """Serve the model in ``folder`` instead of the last one. With a ``name``, serve the adapter in it beside the
        model."""
        with _LOADING:
            made = LocalGenerator(load_checkpoint(folder).model.eval())
        self.loaded.append(folder)
        if name is None:
            self.generator, self.model = made, PurePath(folder).name
            self.chat = ChatFormat(load_tokenizer(folder))
        else:
            self.adapters[name] = made

    def _served(self, body: Body) -> LocalGenerator:
        return self.adapters.get(body["model"], self.generator)

    def chat_completions(self, body: Body) -> Body:
        messages = tuple(Message(row["role"], _words(row["content"]), self._ids(row)) for row in body["messages"])
        prompt = self.chat.prompt_ids(messages)
        drawn = self._draw(prompt, body)
        choices = [
            {
                "index": place,
                "finish_reason": "stop" if sample.token_ids[-1] == self.chat.stop_id else "length",
                "message": {"role": "assistant", "content": self.chat.decode(sample.token_ids)},
            }
            for place, sample in enumerate(drawn)
        ]
        return {"id": "0", "object": "chat.completion", "choices": choices, "usage": _usage(prompt, drawn)}

    def _ids(self, row: Body) -> tuple[int, ...]:
        return self.chat.encode_action(row["content"]) if row["role"] == "assistant" else ()

    def _draw(self, prompt: tuple[int, ...], body: Body) -> list[Sample]:
        [drawn] = self._served(body).sample(
            SampleRequest(
                [prompt],
                body.get("n", 1),
                [body.get("seed", 0)],
                stop_id=body.get("stop_token_ids", [self.chat.stop_id])[0],
                max_new_tokens=body.get("max_completion_tokens") or body["max_tokens"],
                temperature=body.get("temperature", 1.0),
                form=self._form(body) if self.structured else None,
            )
        )
        return drawn

    def _form(self, body: Body) -> Form | None:
        told: str = body.get("structured_outputs", {"grammar": ""})["grammar"]
        start, _, rules = told.removeprefix("%llguidance {}\n").partition("\n")
        return Form(self.chat, lambda spelt: rules or start.replace("start", "turn")) if start else None

    def _top(self, prompt: tuple[int, ...], temperature: float, body: Body) -> dict[str, float]:
        """Log-probabilities of the first token: those of the likeliest tokens, or of the requested ones."""
        logits = next_logprobs(self._served(body), [prompt], range(len(self.chat.tokenizer)))[0]
        logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
        likeliest = logprobs.topk(max(body["logprobs"], 1)).indices.tolist()
        wanted = body.get("logprob_token_ids") or likeliest
        return {f"token_id:{token}": float(logprobs[token]) for token in wanted}

    def _raw(self, prompt: tuple[int, ...], sample: Sample) -> list[float]:
        ids = sample.token_ids
        return [float(next_logprobs(self.generator, [prompt + ids[:i]], [ids[i]])) for i in range(len(ids))]


def _words(content: str | list[Body]) -> str:
    """The text of a content, of whose parts this model sees no images."""
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content)


def _usage(prompt: tuple[int, ...], drawn: list[Sample]) -> Body:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": sum(len(sample.token_ids) for sample in drawn),
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": len(prompt) // 2},
    }


@contextmanager
def serving(server: OpenAIServer, port: int = 0) -> Iterator[OpenAIServer]:
    """Serve on a free port, or on ``port``."""
    open_sockets = set[socket.socket]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            open_sockets.add(self.connection)

        def do_GET(self) -> None:
            self.answer(200, json.dumps({"object": "list", "data": server.models()}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/load_lora_adapter" if server.loads_adapters else "/reload"):
                with server.lock:
                    server.load(body["lora_path"], body.get("lora_name"))
                return self.answer(200, "loaded", "text/plain")
            if body.get("model") not in [each["id"] for each in server.models()]:
                return self.answer(404, json.dumps({"error": {"message": "no such model"}}))
            with server.lock:
                server.asked.append(body)
            fault = server.fault(body)
            if isinstance(fault, float):
                time.sleep(fault)
            if isinstance(fault, int):
                self.answer(fault, json.dumps({"error": {"message": "not now"}}))
            elif isinstance(fault, str):
                self.answer(200, fault)
            elif isinstance(fault, dict):
                self.answer(400, json.dumps({"error": fault}))
            else:
                work = server.chat_completions if self.path.endswith("/chat/completions") else server.completions
                with server.lock:
                    answer = work(body)
                self.answer(200, json.dumps(answer))

        def answer(self, status: int, text: str, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.send_header("Retry-After-Ms", "20")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as http:
        # A client that gave up waiting must not be reported.
        http.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()

        def kill() -> None:
            http.shutdown()
            http.server_close()
            for each in open_sockets:
                with suppress(OSError):  # it is closed already
                    each.shutdown(socket.SHUT_RDWR)

        server.kill = kill
        try:
            yield server
        finally:
            kill()
            thread.join()
