"""A real MCP server over stdio for the tests: it lists one tool on each page, and as many as its argument says."""

import asyncio
import sys
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

PAGES = int(sys.argv[1])


async def listed(context: Any, parameters: PaginatedRequestParams | None) -> ListToolsResult:
    page = int(parameters.cursor or 0) if parameters is not None else 0
    tool = Tool(name=f"tool{page}", input_schema={"type": "object"})
    return ListToolsResult(tools=[tool], next_cursor=str(page + 1) if page + 1 < PAGES else None)


async def called(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=f"this is {parameters.name}")])


async def main() -> None:
    server = Server("paged", on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
