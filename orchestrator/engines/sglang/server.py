"""The process of an SGLang engine, a child of the worker that samples (`liveness.children`).

SGLang installs signal handlers, ends its whole process tree when one of its processes dies, and
starts others that import this module again. It therefore runs in its own process, which `process`
can end and restart. The first call holds the engine's settings, and `private` makes them SGLang's
arguments (`_arguments`).
"""

from __future__ import annotations

import asyncio

from orchestrator.engines.sglang import private
from orchestrator.engines.sglang.process import (
    KEPT,
    Answer,
    Ask,
    Digest,
    Generate,
    Load,
    LoadTensors,
    Settings,
)
from orchestrator.liveness import heartbeat
from orchestrator.liveness.children import Parent, serve

if __name__ in ("__main__", "__mp_main__"):  # the latter in processes that SGLang starts
    private.prepare()

SIGN_S = 0.5  # between checks for signs of life


class Server:
    """Answers calls with one engine."""

    def __init__(self, settings: Settings, parent: Parent):
        self._parent = parent
        self._engine = private.open_engine(settings)
        self._takes_turns = settings.takes_turns
        if self._takes_turns:
            self._engine.loop.run_until_complete(private.give_back_cache(self._engine))

    def answer(self, call: Load | LoadTensors | Generate | Digest) -> dict[str, str] | None:
        """Load weights, send the response to each ask of a call, or return digests of tensors."""
        if isinstance(call, Digest):
            return private.tensor_digests(self._engine)
        self._engine.loop.run_until_complete(self._answer(call))
        return None

    async def _answer(self, call: Load | LoadTensors | Generate) -> None:
        signs = asyncio.create_task(self._signs())
        try:
            if isinstance(call, Load):
                await private.update_weights(self._engine, call.folder, call.version)
            elif isinstance(call, LoadTensors):
                await private.take_weights(self._engine, call)
            elif self._takes_turns:
                await private.take_cache(self._engine)
                await self._generate(call)
                await private.give_back_cache(self._engine)
            else:
                await self._generate(call)
        finally:
            signs.cancel()

    async def _generate(self, call: Generate) -> None:
        """Submit all asks at once; the engine limits concurrency, and so may the call."""
        room = asyncio.Semaphore(call.at_once or len(call.asks) or 1)

        async def one(ask: Ask) -> None:
            async with room:
                self._parent.send(await self._response(ask, call))

        await asyncio.gather(*map(one, call.asks))

    async def _response(self, ask: Ask, call: Generate) -> Answer:
        processor, parameters = private.custom_parameters(ask.draw)
        response = await self._engine.async_generate(
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
        about = response["meta_info"]
        reason = about["finish_reason"]
        if reason["type"] not in ("stop", "length"):
            raise RuntimeError(f"SGLang gave a request up: {reason.get('message', reason)}")
        kept = {name: about[name] for name in KEPT if name in about}
        return Answer(
            index=ask.index,
            tokens=response["output_ids"],
            stopped=reason["type"] == "stop",
            version=about["weight_version"],
            kept=kept,
        )

    async def _signs(self) -> None:
        """Count each report of the scheduler as a piece of work."""
        heard = private.last_sign(self._engine)
        while True:
            await asyncio.sleep(SIGN_S)
            last = private.last_sign(self._engine)
            if last != heard:
                heard = last
                heartbeat.advance()


if __name__ == "__main__":
    serve(lambda settings, parent: Server(settings, parent).answer)
