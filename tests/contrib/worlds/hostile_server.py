"""An MCP server over stdio, written without a library, that misbehaves in the way that its first argument names.

The second argument is a JSON file of the tools to list.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FAULT = sys.argv[1]
GIVEN: Any = json.loads(Path(sys.argv[2]).read_text())
ECHO = {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def answer(number: object, result: Mapping[str, object]) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")


def listed(number: object) -> None:
    """Answer the request for the list of tools."""
    answer(number, {"tools": GIVEN if FAULT == "tools" else [ECHO]})


if FAULT == "dies":
    sys.exit("first line\n\x1b[31mcause of death")
if FAULT == "hangs at start":
    sys.stdin.read()
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        answer(request["id"], ABOUT)
    elif request.get("method") == "tools/list":
        listed(request["id"])
