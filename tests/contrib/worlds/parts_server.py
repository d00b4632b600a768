"""An MCP server whose tools answer with other content than text."""

import json
import os
import sys

RESOURCE = {"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "Oslo"}
ANSWERS = {
    "file": {"content": [{"type": "resource", "resource": RESOURCE}]},
    "link": {"content": [{"type": "resource_link", "uri": "file:///notes.txt", "name": "notes"}]},
    "figures": {"content": [], "structuredContent": {"people": 700000}},
    "broken": {"content": [], "isError": True},
    "place": {"content": [{"type": "text", "text": f"{os.environ.get('TOWN')} in {os.getcwd()}"}]},
}
SCHEMA = {"type": "object", "properties": {}}
TOOLS = [
    {"name": name, "description": name, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
    for name in ANSWERS
]

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: object = {}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"name": "notes", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif message["method"] == "tools/call":
        result = ANSWERS[message["params"]["name"]]
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
