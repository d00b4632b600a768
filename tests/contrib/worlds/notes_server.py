"""A real MCP server over stdio for the tests: a few notes to search, a counter, and ways to fail."""

import os
import time

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes")
NOTES = {"kiwi": "The kiwi is a bird of New Zealand.", "oslo": "Oslo is the capital of Norway."}
READ, REPEATABLE = ToolAnnotations(read_only_hint=True), ToolAnnotations(idempotent_hint=True)
written: dict[str, str] = {}
count = 0


@server.tool(annotations=READ)
def find(word: str) -> str:
    """Find notes by a word."""
    return ", ".join(name for name, text in NOTES.items() if word.lower() in text.lower()) or "nothing"


@server.tool(annotations=READ)
def read(name: str, lines: int = 1) -> str:
    """Read a note."""
    return "\n".join([NOTES[name]] * lines)


@server.tool(annotations=REPEATABLE)
def write(name: str, text: str) -> str:
    """Write a note."""
    written[name] = text
    return f"{len(written)} written"


@server.tool()
def add() -> str:
    """Add one to what was added before."""
    global count
    count += 1
    return str(count)


@server.tool(annotations=READ)
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool(annotations=READ)
def wait() -> str:
    """Wait for a long time."""
    time.sleep(1000)
    return "done"


if __name__ == "__main__":
    server.run()
