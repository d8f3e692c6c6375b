"""What a run was made with: the machine's processor and GPUs, and the state of the source tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.records.provenance import cpu_model, gpu_models, provenance

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9V74 80-Core Processor\n\nprocessor\t: 1\n"
RASPBERRY = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [(X86, "AMD EPYC 9V74 80-Core Processor"), (RASPBERRY, "Raspberry Pi 5 Model B Rev 1.0")],
)
def test_the_processor_has_its_name(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo") == name


def test_gpus_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    assert gpu_models(tmp_path / "none") == []
    for slot in ("0000:18:00.0", "0000:2a:00.0"):
        (tmp_path / slot).mkdir()
        (tmp_path / slot / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 21\n")
    assert gpu_models(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]


def test_provenance_has_no_clock() -> None:
    assert provenance() == provenance()
    assert {"commit", "dirty_diff", "untracked", "versions", "host"} == set(provenance())
    assert {"name", "system", "machine", "cpu", "cores", "gpus"} == set(provenance()["host"])
