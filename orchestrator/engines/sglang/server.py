"""The process of an SGLang engine: `python -m orchestrator.engines.sglang.server FD PARENT`.

SGLang installs signal handlers, ends its whole process tree when one of its processes dies, and
starts others that import this module again. It therefore runs in its own process, which `process`
can end and restart. The server answers calls one by one over the socket FD, and ends when the
process PARENT does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from orchestrator.engines.sglang import private
from orchestrator.engines.sglang.calls import (
    KEPT,
    Answer,
    Ask,
    Failed,
    Generate,
    Load,
    Settings,
    Sign,
)

if __name__ in ("__main__", "__mp_main__"):  # the latter in processes that SGLang starts
    private.prepare()

SIGN_S = 0.5  # between checks for signs of life


class Server:
    """Answers calls with one engine."""

    def __init__(self, connection: Connection, settings: Settings):
        self._connection = connection
        self._engine = private.open_engine(settings)
        self._takes_turns = settings.takes_turns
        self._version = ""

    def run(self) -> None:
        """Answer calls until the worker closes the connection."""
        if self._takes_turns:
            self._engine.loop.run_until_complete(private.give_back_cache(self._engine))
        self._connection.send(None)
        while True:
            try:
                call = self._connection.recv()
            except EOFError:
                return
            try:
                self._engine.loop.run_until_complete(self._answer(call))
            except Exception as error:  # any error of SGLang; the worker decides about the engine
                self._connection.send(Failed(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        self._engine.shutdown()

    async def _answer(self, call: Load | Generate) -> None:
        signs = asyncio.create_task(self._signs())
        try:
            if isinstance(call, Load):
                await private.update_weights(self._engine, call.folder, call.version)
                self._version = call.version
            elif self._takes_turns:
                await private.take_cache(self._engine)
                await self._generate(call)
                await private.give_back_cache(self._engine)
            else:
                await self._generate(call)
        finally:
            signs.cancel()
        self._connection.send(None)

    async def _generate(self, call: Generate) -> None:
        """Submit all asks at once; the engine limits concurrency, and so may the call."""
        room = asyncio.Semaphore(call.at_once or len(call.asks) or 1)

        async def one(ask: Ask) -> None:
            async with room:
                self._connection.send(await self._response(ask, call))

        await asyncio.gather(*map(one, call.asks))

    async def _response(self, ask: Ask, call: Generate) -> Answer:
        processor, parameters = private.custom_parameters(ask.draw)
        found = await self._engine.async_generate(
            input_ids=list(ask.prompt),
            sampling_params={
                "max_new_tokens": call.max_tokens,
                "stop_token_ids": list(call.stop),
                "ignore_eos": not call.stop,
                "temperature": 1.0,  # our sampler applies its own
                "custom_params": parameters,
            },
            custom_logit_processor=processor,
        )
        about = found["meta_info"]
        reason = about["finish_reason"]
        if reason["type"] not in ("stop", "length"):
            raise RuntimeError(f"SGLang gave a request up: {reason.get('message', reason)}")
        kept = {name: about[name] for name in KEPT if name in about}
        return Answer(
            ask.index, found["output_ids"], reason["type"] == "stop", about["weight_version"], kept
        )

    async def _signs(self) -> None:
        """Send a sign of life whenever the scheduler has reported."""
        heard = private.last_sign(self._engine)
        while True:
            await asyncio.sleep(SIGN_S)
            last = private.last_sign(self._engine)
            if last != heard:
                heard = last
                self._connection.send(Sign())


def _end_with(parent: int) -> None:
    """End this process and its children once the worker is gone, even if this process hangs."""
    while os.getppid() == parent:
        time.sleep(SIGN_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), name="parent", daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    server = Server(connection, connection.recv())
    try:
        server.run()
    finally:
        server.close()


if __name__ == "__main__":
    main()
