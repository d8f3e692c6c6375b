"""How SGLang would start on a GPU that is not here: `python -m tests.rehearsal.sglang_start CARD`
prints it as JSON.

- `failed`: modules that an engine's processes import on that card and that raise, with the error.
- `missing`: packages that SGLang looks for on the way and goes on without.
- `arguments`: those that SGLang resolves from ours, for each setup and engine; or why the engine is refused.
- `table`: a table of requests that holds sevens, after the memory of its cache was taken again.
- `kernels`: Triton's attention kernels, built for the card, and the bytes of shared memory that they ask for.

The packages of `docker/lock/kernels.txt` are for CUDA builds of torch alone. Modules that have
every name take their place, and no other: any further package that an engine needs would show.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import logging
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.engines.sglang import engine, private
from orchestrator.engines.sglang.process import Settings
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from tests.rehearsal.cards import CARDS, Card, pretend
from tests.rehearsal.packages import Missing, Replaced, packages_of_kernels
from tests.rehearsal.triton_kernels import sampler_bytes, shared_bytes
from tests.sweeps import ROOT

ATTENTION = {9: "flashattention_backend", 8: "flashinfer_backend", 10: "trtllm_mha_backend"}
IMPORTED = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.qwen3",
    "sglang.srt.layers.attention.triton_backend",
    "orchestrator.engines.sglang.server",
    "orchestrator.engines.sglang.blending_worker",
)
RESOLVED = (
    *(
        "attention_backend",
        "sampling_backend",
        "dtype",
        "kv_cache_dtype",
        "page_size",
        "context_length",
    ),
    *(
        "max_total_tokens",
        "max_running_requests",
        "mem_fraction_static",
        "chunked_prefill_size",
        "max_prefill_tokens",
    ),
    *(
        "enable_memory_saver",
        "disable_overlap_schedule",
        "disable_radix_cache",
        "enable_mixed_chunk",
    ),
    *("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens"),
)
# Heads, KV heads and width of a head: those of Qwen3-1.7B, and of both models that add numbers.
SHAPES = {"bfloat16": [(16, 8, 128)], "float32": [(4, 2, 16), (4, 2, 24)]}


def failed_imports(card: Card) -> dict[str, str]:
    """Module → error, of those that an engine's processes import on the card."""
    failed: dict[str, str] = {}
    for module in (*IMPORTED, f"sglang.srt.layers.attention.{ATTENTION[card.capability[0]]}"):
        try:
            importlib.import_module(module)
        except Exception as error:
            failed[module] = f"{type(error).__name__}: {error}"
    return failed


def engines(setup: Setup, folder: Path) -> dict[str, Any]:
    """Resolved arguments of each engine of a setup, or why it is refused on this card."""
    from orchestrator.models.recipes import qwen3_config

    for name in ("student", "teacher"):
        model = getattr(setup, name)
        config = qwen3_config(model.shape, setup.vocabulary.size, model.eos)
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder / name)
    student, teacher = (ModelFolder(str(folder / name)) for name in ("student", "teacher"))
    trial = Job(
        setup, Runtime(placement=Placement(gpus=1)), student, teacher, steps=400, takes_turns=True
    )
    evaluator = replace(trial, teacher=None, steps=0, trains=False, takes_turns=False)
    wanted = {
        "trial, the student alone": lambda: engine.settings(trial, "student"),
        "trial, blending": lambda: engine.blending_settings(trial),
        "evaluator": lambda: engine.settings(evaluator, "student"),
    }
    found: dict[str, Any] = {}
    for name, settings in wanted.items():
        try:
            found[name] = resolved(settings())
        except UserError as error:
            found[name] = str(error)
    return found


def resolved(settings: Settings) -> dict[str, Any]:
    """What SGLang makes of our arguments, before it starts any process."""
    from sglang.srt.server_args import ServerArgs

    given = private._arguments(settings)
    if settings.second is not None:
        from orchestrator.engines.sglang import blending_worker

        worker: Any = blending_worker
        worker.BlendingEngine = dict  # keeps what it is given
        given = worker.open_engine(settings, given)
    server = ServerArgs(**given)
    server.resolve_once()
    values = server.resolved_dict()
    graphs = values["cuda_graph_config"]
    captured = {}
    for phase in ("decode", "prefill"):
        sizes = graphs[phase]["bs"]
        captured[f"{phase} graphs"] = f"{graphs[phase]['backend']}, {len(sizes)} up to {max(sizes)}"
        if graphs[phase]["backend"] == "disabled":
            captured[f"{phase} graphs"] = "none"
    values["mem_fraction_static"] = round(values["mem_fraction_static"], 4)
    return {name: values[name] for name in RESOLVED if values[name] is not None} | captured


def table_taken_again() -> list[list[int]]:
    """A table of requests whose memory came back with other content, as an engine's scheduler
    leaves it.
    """
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput
    from sglang.srt.managers.scheduler_components.weight_updater import (
        SchedulerWeightUpdaterManager,
    )

    table = torch.full((3, 2), 7)
    runner = SimpleNamespace(req_to_token_pool=SimpleNamespace(req_to_token=table))
    manager = SchedulerWeightUpdaterManager(
        tp_worker=SimpleNamespace(model_runner=runner),
        draft_worker=None,
        tp_cpu_group=None,
        memory_saver_adapter=SimpleNamespace(resume=lambda tag: None),
        flush_cache=lambda: True,
        is_fully_idle=lambda: True,
        offload_tags={private.KV_CACHE},
    )
    manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=[private.KV_CACHE]))
    return table.tolist()


def main() -> None:
    warnings.simplefilter("ignore")
    card = CARDS[sys.argv[1]]
    missing = Missing()
    sys.meta_path.insert(0, Replaced(packages_of_kernels()))
    sys.meta_path.append(missing)
    private._find_torchvision()  # a CPU build of torch cannot import torchvision's CUDA wheel
    pretend(card)
    private.prepare()
    failed = failed_imports(card)
    logging.disable(logging.WARNING)
    setups: dict[str, Setup] = {}
    for experiment in ("paper", "quickstart"):
        setups |= load_experiment(ROOT / "experiments" / f"{experiment}.yaml").setups
    arguments = {}
    for name, setup in setups.items():
        with tempfile.TemporaryDirectory() as folder:
            setup = replace(setup, engine=replace(setup.engine, sampler="sglang", trainer="verl"))
            arguments[name] = engines(setup, Path(folder))
    kernels = {}
    for dtype, shapes in SHAPES.items():
        for shape in shapes:
            kernels[f"{dtype} {shape}"] = shared_bytes(card, getattr(torch, dtype), *shape)
    report = {
        "failed": failed,
        "missing": sorted(missing.names),
        "arguments": arguments,
        "kernels": kernels,
        "sampler": [sampler_bytes(card, 1.0, "student"), sampler_bytes(card, 0.7, "teacher")],
    }
    print(json.dumps(report | {"table": table_taken_again()}))


if __name__ == "__main__":
    main()
