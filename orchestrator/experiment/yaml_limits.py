"""Refuses YAML that no experiment needs and that would exhaust the reader: deep nesting, references without end.

What is checked are the events of the parser, which is a loop; everything after it (the composer, OmegaConf) recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

DEEPEST = 50  # collections inside each other
MOST_NODES = 20_000  # keys and values, with every reference to an anchor written out
LONGEST = 1_000_000  # characters
MOST_REFERENCES = 20  # ${…} in one text: few of them that refer to each other make a text of any length
FASTEST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it


class YamlTooLarge(ValueError):
    """The text is beyond one of the limits; the message says which."""


@dataclass
class _Open:
    """A collection that has begun: its anchor, the nodes below it so far and how deep they go."""

    anchor: str | None
    nodes: int = 1
    depth: int = 1


def check_limits(text: str) -> None:
    """Raise YamlTooLarge if `text` is too much to read, or yaml.YAMLError where it is no YAML at all."""
    if len(text) > LONGEST:
        raise YamlTooLarge(f"more than {LONGEST} characters")
    if text.count("${") > MOST_REFERENCES:
        raise YamlTooLarge(f"more than {MOST_REFERENCES} references ${{…}}")
    try:
        _check_events(yaml.parse(text, Loader=FASTEST))
    except yaml.YAMLError:  # its messages are other ones than those of the reader that follows
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader))


def _check_events(events: Iterator[yaml.Event]) -> None:
    open_: list[_Open] = []
    complete: dict[str, tuple[int, int]] = {}  # anchor → nodes and depth of what it stands for
    for event in events:
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            open_.append(_Open(event.anchor))
            _check(len(open_), 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            done = open_.pop()
            _count(open_, complete, done.anchor, done.nodes, done.depth)
        elif isinstance(event, yaml.ScalarEvent):
            _count(open_, complete, event.anchor, 1, 0)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == collection.anchor for collection in open_):
                raise YamlTooLarge(f"line {event.start_mark.line + 1}: *{event.anchor} refers to what it stands in")
            _count(open_, complete, None, *complete.get(event.anchor, (1, 0)))


def _count(
    open_: list[_Open], complete: dict[str, tuple[int, int]], anchor: str | None, nodes: int, depth: int
) -> None:
    """Add what has just ended to the collection around it, and remember what its anchor stands for."""
    if anchor is not None:
        complete[anchor] = nodes, depth
    if open_:
        around = open_[-1]
        around.nodes += nodes
        around.depth = max(around.depth, depth + 1)
        _check(len(open_) + depth, around.nodes)


def _check(depth: int, nodes: int) -> None:
    if depth > DEEPEST:
        raise YamlTooLarge(f"nested more than {DEEPEST} deep")
    if nodes > MOST_NODES:
        raise YamlTooLarge(f"more than {MOST_NODES} keys and values, references written out")
