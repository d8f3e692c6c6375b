"""When an engine's process takes and gives back the memory of its cache; SGLang itself is a fake
here.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator.engines.sglang import private, server
from orchestrator.engines.sglang.process import Answer, Ask, Draw, Generate, Load, Settings
from orchestrator.liveness.children import Parent

WEIGHTS = Load("/weights", "1-step0")
TWO = Generate([Ask(index, (1, 2), Draw(index, 2)) for index in range(2)], 4, (0,), None)


class Asker(Parent):
    """The other side of the connection: keeps what it is sent."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def send(self, message: object) -> None:
        self.answers.append(message)


def settings(takes_turns: bool) -> Settings:
    return Settings("/model", "float32", "student", 16, 0, 15, 8, True, None, 64, 4, takes_turns)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of SGLang, in its order. A request whose prompt is longer than two tokens
    fails.
    """
    order: list[str] = []
    loop = asyncio.new_event_loop()

    def noted(what: str) -> Callable[..., Any]:
        async def note(*_: object) -> None:
            order.append(what)

        return note

    async def generate(input_ids: list[int], **_: object) -> dict[str, Any]:
        order.append("generate")
        reason = {"type": "length" if len(input_ids) == 2 else "abort"}
        return {
            "output_ids": [3, 3, 3, 3],
            "meta_info": {"finish_reason": reason, "weight_version": "1-step0"},
        }

    engine = types.SimpleNamespace(loop=loop, async_generate=generate)
    monkeypatch.setattr(private, "open_engine", lambda _: engine)
    monkeypatch.setattr(private, "last_sign", lambda _: 0.0)
    monkeypatch.setattr(private, "custom_parameters", lambda _: ("", {}))
    for name, what in (
        ("give_back_cache", "give back"),
        ("take_cache", "take"),
        ("update_weights", "load"),
    ):
        monkeypatch.setattr(private, name, noted(what))
    yield order
    loop.close()


def test_an_engine_that_takes_turns_has_a_cache_while_it_samples_and_not_before_or_after(
    done: list[str],
) -> None:
    asker = Asker()
    engine = server.Server(settings(takes_turns=True), asker)
    for call in (WEIGHTS, TWO, WEIGHTS, TWO):
        engine.answer(call)
    round_ = ["load", "take", "generate", "generate", "give back"]
    assert done == ["give back", *round_, *round_]
    assert [type(answer) for answer in asker.answers] == 4 * [Answer]


def test_an_engine_of_an_evaluator_keeps_its_cache(done: list[str]) -> None:
    engine = server.Server(settings(takes_turns=False), Asker())
    engine.answer(WEIGHTS)
    engine.answer(TWO)
    assert done == ["load", "generate", "generate"]


def test_a_request_that_is_given_up_fails_its_call(done: list[str]) -> None:
    asker = Asker()
    engine = server.Server(settings(takes_turns=True), asker)
    with pytest.raises(RuntimeError, match="SGLang gave a request up"):
        engine.answer(Generate([Ask(0, (1, 2, 3), Draw(0, 3))], 4, (0,), None))
    assert done == ["give back", "take", "generate"]
    assert asker.answers == []
