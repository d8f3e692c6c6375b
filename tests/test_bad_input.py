"""Generated bad input: whatever is typed or lies in a file, a command ends with 0 or with 2 and one
line.

The inputs are the same in every run. None of them starts a sweep.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.commands.config_reference import ANY, all_keys
from tests.sweeps import TINY_SETUP, write_experiment

LONGEST_LINE = 400
HUGE = "9" * 5000
VALUES = ("", "x", "-1", "0", "1.5", str(10**19), ".nan", "null", "true", "[]", "{a: {b: c}}",
          "${x}", "[", "../../etc", "ä€😀", "2026-11-21", "x" * 5000, "a\nb")  # fmt: skip
FILES = {
    "empty": "",
    "a number": "7\n",
    "a list": "[arithmetic]\n",
    "deep list": "name: " + "[" * 5000 + "]" * 5000,
    "an anchor in itself": "name: &x [1, *x]\n",
    "many values": f"setups: [arithmetic]\nseeds: [{', '.join(map(str, range(30_000)))}]\n",
    "many trials": f"setups: [arithmetic]\nmethods: {{trust_region: {{K: {list(range(1, 300))}, "
    f"epsilon0: {[i / 1000 for i in range(1, 300)]}}}}}\n",
    "long setup": f"setups: [{'s' * 5000}]\nmethods: {{vanilla: {{}}}}\n",
    "a path for a setup": "setups: [../../etc/passwd]\nmethods: {vanilla: {}}\n",
    "two documents": "setups: [arithmetic]\n---\nname: x\n",
    "a tag": "setups: !!python/object/apply:os.system [ls]\n",
}
ROWS = {
    "deep": '{"gold": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "long keys": f'{{"{"k" * 10_000}": 1}}',
    "half": '{"gold": "1", ',
    "a list": "[]",
}
WORDS = {"EXP": "sweep.yaml", "LONG": "x" * 5000, "HUGE": HUGE, "BIG": str(10**19), "COMMAS": "," * 500,
         "DEEP": "a" + ".a" * 5000 + "=1", "BRACKETS": "a" + "[0]" * 500 + "=1", "NOTHING": "",
         "NOT_UTF8": "\udcff", "PAIR": "--setup arithmetic --benchmarks"}  # fmt: skip
COMMANDS = (
    """
NOTHING / - / -- / submt / submit / submit --json / plan / plan NOTHING / plan nope.yaml / plan LONG / plan EXP --runs
plan EXP --runs LONG / plan EXP --seeds 3 / plan EXP --seeds=3 / plan EXP --training.steps 3 / plan EXP -x
plan EXP --LONG / plan EXP EXP / plan EXP training.steps=1 training.steps=2 / plan EXP LONG / plan EXP DEEP
plan EXP BRACKETS / plan EXP === / table / table EXP --format html / table EXP --compare LONG / table --results nope.csv
table EXP --results x / table EXP --compare vanilla,vanila / status / status EXP --runs EXP / probe / probe contination
probe continuation / probe continuation EXP probe.epsilon=0 / figures / figures EXP --out EXP / report EXP --out .
grade / grade nope / grade . / grade a b / grade a --out / config LONG / config stepz / config --frob / eval / eval m
eval m PAIR arithmetic_short:BIG / eval m PAIR arithmetic_short:HUGE
eval m PAIR arithmetic_short --limit BIG / eval . PAIR COMMAS
eval m PAIR arithmetic_short --seed HUGE / eval m --setup LONG --benchmarks arithmetic_short
eval m --setup ../../etc/passwd --benchmarks arithmetic_short / eval LONG PAIR arithmetic_short
dashboard / doctor nope.yaml / regrade / plan EXP name=NOT_UTF8 / plan NOT_UTF8.yaml / status EXP --runs NOT_UTF8
NOT_UTF8 / plan EXP --NOT_UTF8 / table --results NOT_UTF8.csv / eval NOT_UTF8 PAIR arithmetic_short
""".strip()
    .replace("\n", " / ")
    .split(" / ")
)


def overrides() -> Iterator[str]:
    """Every key of an experiment with some of the values; each value with many of the keys."""
    values = itertools.cycle(VALUES)
    for key in all_keys():
        if not key.name.startswith("(setup)"):
            name = key.name.replace(
                ANY, "arithmetic_short" if "benchmarks" in key.name else "vanilla"
            )
            yield from (f"{name}={value}" for value in itertools.islice(values, 1))


def broken_texts() -> Iterator[str]:
    """A good experiment file with a character changed, cut off, or a line twice."""
    good = yaml.safe_dump(
        {
            "setups": ["tiny"],
            "methods": {"trust_region": {"epsilon0": [0.1], "K": [2]}},
            "seeds": [0],
        }
    )
    chance = random.Random(0)
    for _ in range(10):
        place = chance.randrange(len(good))
        yield good[:place] + chance.choice("\0\t{}[]:,&*!|>'\"%@`#-?\n😀") + good[place + 1 :]
        yield good[:place]
    for line in good.splitlines():
        yield f"{good}{line}\n"


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good experiment in a working folder that is `tmp_path / "here"`."""
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    path = write_experiment(tmp_path / "here", {"vanilla": {}})
    monkeypatch.chdir(path.parent)
    return path


def ends_well(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 0, or 2 with one short line; nothing new in `folder`."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert ended.value.code in (0, 2), captured
    assert "Traceback" not in captured.out + captured.err
    if ended.value.code == 2:
        assert captured.out == ""
        assert captured.err.startswith("trb: ")
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        assert len(captured.err) <= LONGEST_LINE
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for placeholder, text in WORDS.items():
        command = command.replace(placeholder, text)
    ends_well(command.split(" "), experiment.parent.parent, capsys)


@pytest.mark.parametrize("override", list(overrides()), ids=lambda text: text[:40])
def test_overrides(override: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends_well(["plan", str(experiment), override], experiment.parent.parent, capsys)


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.write_text(FILES[name])
    ends_well(["plan", str(experiment)], experiment.parent.parent, capsys)


def test_broken_texts(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in broken_texts():
        experiment.write_text(text)
        ends_well(["config", str(experiment)], experiment.parent.parent, capsys)


@pytest.mark.parametrize(
    "key",
    [
        f"{part}.{key}"
        for part, keys in TINY_SETUP.items()
        if isinstance(keys, dict)
        for key in keys
    ],
)
def test_keys_of_a_setup(key: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part, name = key.split(".")
    for value in (None, -1, "x" * 3000, {"a": 1}, float("nan")):
        changed = TINY_SETUP | {part: TINY_SETUP[part] | {name: value}}
        (experiment.parent / "setups" / "tiny.yaml").write_text(yaml.safe_dump(changed))
        ends_well(["plan", str(experiment)], experiment.parent.parent, capsys)


@pytest.mark.parametrize("name", ROWS)
def test_rows_to_grade(name: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (experiment.parent / "rows.jsonl").write_text(ROWS[name])
    ends_well(["grade", "rows.jsonl"], experiment.parent.parent, capsys)
