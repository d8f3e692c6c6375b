"""The count of the judge's rules: which fired, and whose absence would change a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.sweeps import ROOT, environment


def test_a_rule_that_decides_is_needed(tmp_path: Path) -> None:
    rows = [(r"\frac{1}{2}", r"\dfrac{1}{2}\text{ cm}"), ("x>3", r"x \gt 3"), ("5", "6")]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps({"gold": g, "answer": a}) + "\n" for g, a in rows))
    command = [sys.executable, "-m", "benchmarks.grader_rules", file]
    paths = {"PYTHONPATH": str(ROOT)}  # the benchmark writes to the working directory
    subprocess.run(command, cwd=tmp_path, env=environment() | paths, check=True)
    document = json.loads((tmp_path / "grader-rules.json").read_text(encoding="utf-8"))
    assert document["pairs"] == {"answers.jsonl": 3}
    counted = {}
    for name, rule in document["rules"].items():
        if rule["fired"]:
            counted[name] = rule["fired"]["answers.jsonl"], rule["needed"]["answers.jsonl"]
    assert counted["meanings._TEXT_UNIT"] == (1, 1)
    # The library reads \\gt itself, so this verdict would be the same without the rule.
    assert counted[r"notation._SYNONYMS: \\gt(?![A-Za-z])"] == (1, 0)
    assert r"notation._SYNONYMS: \\lt(?![A-Za-z])" not in counted
