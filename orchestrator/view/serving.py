"""The view in a browser: a server on loopback, under an address that holds a secret token.

textual-serve starts a process of `trb view` for each page and sends its screen over a websocket.
It would answer anyone who reaches the port, and its page asks a font server of the internet; so
here everything lies below the token, and the page is our own (`page/`).
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

from orchestrator.errors import refuse

LOOPBACK = "127.0.0.1"
PAGE = Path(__file__).with_name("page")
ENDING_S = 1.0  # for open pages when the server ends
HEADERS = {  # of every answer: nothing is fetched from elsewhere, and nothing is kept
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data:; connect-src 'self' ws:",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class LocalServer(Server):
    """Shows a command's screen to who knows the token."""

    def __init__(self, command: str, title: str, port: int, token: str):
        super().__init__(command, LOOPBACK, port, title, templates_path=PAGE)
        self.token = token

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"{self.public_url}/{self.token}/"

    async def make_app(self) -> web.Application:
        """All routes of textual-serve, below the token; anything else is not found."""
        app = web.Application()
        app.add_subapp(f"/{self.token}/", await self._make_app())
        app.on_response_prepare.append(_add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: `serve` says the address."""


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def serve(command: str, name: str, port: int) -> int:
    """Show the screen of `command` in a browser until Ctrl-C; port 0 is a free one."""
    listening = socket.socket()
    # Lets a view take its port again right after another one ended there.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen()  # so that the address answers as soon as it is printed
    except OSError as error:
        listening.close()
        raise refuse("--port", port, f"a free port ({error.strerror})") from None
    port = listening.getsockname()[1]
    server = LocalServer(command, f"trb view {name}", port, secrets.token_urlsafe(24))
    print(f"{name} in a browser on this machine: {server.address}")
    print(f"From elsewhere: ssh -L {port}:{LOOPBACK}:{port} HOST, then the same address.")
    print("Who has the address can look at the sweep. Ctrl-C ends it.", flush=True)
    web.run_app(
        server.make_app(),
        sock=listening,
        print=lambda *_: None,  # aiohttp would print an address without the token
        access_log=None,
        shutdown_timeout=ENDING_S,
    )
    return 0
