"""Everything that leans on SGLang's inside, read in one version of it. Imported in an engine's own processes alone.

SGLang starts a server's processes anew, each of which imports `engines.sglang.server`, and that calls `prepare`: so all
of them have the platform and the sampler below. The sampler takes the place of SGLang's own through its registry of
sampling backends. It reads logits in the setup's token space, as the torch engine does, and sends back with each token
what a rollout keeps of it.

Shapes: B requests of a batch, V vocabulary rows, K support ids.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from orchestrator.engines.budget import PREFILLED, SAMPLED_AT_ONCE
from orchestrator.engines.interface import Owner
from orchestrator.engines.sglang.calls import LOG_PROBS, SUPPORT, Drawing, Settings
from orchestrator.engines.sglang.shards import agreed
from orchestrator.policy import laws, speculation
from orchestrator.policy.spec import Student, Tempered
from orchestrator.policy.vocabulary import TokenSpace

VERSION = "0.5.20"
BACKEND = "trb"  # name of the sampler among SGLang's sampling backends
KV_CACHE = "kv_cache"  # SGLang's tag of that memory
IDLE_WITHIN_S = 60.0
LARGEST_PAGE = 128  # tokens of SGLang's KV cache that are handed out together
BLOCK_TOKENS = 64  # room beyond the longest sequence: SGLang wants more than a page of it

_libraries: list[torch.library.Library] = []  # a library's operators are there for as long as it is
_space: list[tuple[TokenSpace, Owner]] = []  # how this process reads logits; told through SPACE
SPACE = "TRB_SGLANG_SPACE"  # valid ids, EOS of student and teacher, whose model; for processes that SGLang starts


# --- processes ---


def check_version() -> None:
    """RuntimeError where another version of SGLang is installed than this file was read in."""
    found = importlib.metadata.version("sglang")
    if found != VERSION:
        raise RuntimeError(f"sglang {found} is installed — {VERSION}, whose inside this program was written for")


def prepare() -> None:
    """Make a process fit for SGLang, before anything of it is imported. Each process of an engine calls it."""
    check_version()
    _listen_on_loopback()
    if not torch.cuda.is_available():
        _use_plain_cpu()
    from sglang.srt.layers.sampler import register_sampler_backend

    for name in (BACKEND, "pytorch"):  # the latter is what SGLang takes on CPUs, whatever it is asked for
        register_sampler_backend(name, _sampler_class())
    _let_padding_read_zeros()


def _let_padding_read_zeros() -> None:
    """Clear what the padding of a batch reads whenever the cache's memory comes back, which may hold anything then.

    Batches are padded to sizes that CUDA graphs were captured for. Padding reads the first entry of the table of
    requests, which lies in that memory, as the number of a slot: any number would be an address.
    """
    updater = importlib.import_module("sglang.srt.managers.scheduler_components.weight_updater")
    manager = updater.SchedulerWeightUpdaterManager
    resume = manager.resume_memory_occupation

    def resume_cleared(self: Any, request: Any) -> Any:
        answer = resume(self, request)
        self.tp_worker.model_runner.req_to_token_pool.req_to_token[0].zero_()
        return answer

    manager.resume_memory_occupation = resume_cleared


def _listen_on_loopback() -> None:
    """Let torch's store, over which an engine's ranks meet, listen where it is told to: it would on all interfaces."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")

    def create(host: str, port: int, rank: int, ranks: int, timeout: timedelta, use_libuv: bool = True) -> Store:
        first = rank == 0
        listening = socket.create_server((host, port)).detach() if first else None
        return TCPStore(host, port, ranks, first, timeout, master_listen_fd=listening, use_libuv=use_libuv)

    rendezvous._create_c10d_store = create  # pyright: ignore[reportAttributeAccessIssue]


def open_engine(settings: Settings) -> Any:
    """SGLang's engine, up and in the weights of `settings.model`."""
    space = (settings.valid, settings.student_eos, settings.teacher_eos, settings.owner)
    os.environ[SPACE] = ",".join(map(str, space))
    # A model's configuration may give less than the setup asks for, as it does to the other engines, too.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if settings.shards > 1 and not settings.gpu:
        # SGLang wants cores for each shard. On the plain platform nothing is bound to them, but it counts the entries.
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join("0" * settings.shards)
    if settings.second is not None:
        from orchestrator.engines.sglang import blending_worker

        return check_cache(blending_worker.open_engine(settings, _arguments(settings)), settings)
    from sglang.srt.entrypoints.engine import Engine

    return check_cache(Engine(**_arguments(settings)), settings)


def check_cache(engine: Any, settings: Settings) -> Any:
    """The engine. Raises RuntimeError where its KV cache is not of the size that was granted: SGLang only warns."""
    there = engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"]
    # Only whole pages are made: their tokens are one on an H100, 64 on a B200.
    if not settings.cache_tokens - LARGEST_PAGE < there <= settings.cache_tokens:
        engine.shutdown()
        raise RuntimeError(f"SGLang made a KV cache of {there} tokens where {settings.cache_tokens} were granted")
    return engine


def _arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of SGLang's engine; see its `ServerArgs`."""
    arguments: dict[str, Any] = {
        "model_path": settings.model,
        "skip_tokenizer_init": True,  # token ids go in and come out
        "dtype": settings.dtype,
        "attention_backend": settings.attention,  # see `attention`; None leaves it to SGLang
        "context_length": settings.context + BLOCK_TOKENS,
        "sampling_backend": BACKEND,
        "enable_custom_logit_processor": True,  # else a request's parameters do not reach the sampler
        "grammar_backend": "none",
        "skip_server_warmup": True,
        "sleep_on_idle": True,  # else an engine that waits for a call keeps a core busy
        "random_seed": 0,
        "log_level": "error",
        "tp_size": settings.shards,
        "max_total_tokens": settings.cache_tokens,
        "max_running_requests": settings.requests,
    }
    if settings.gpu:
        return arguments | {
            # The pool has the smaller of two sizes: `max_total_tokens`, and what this share of the free memory leaves.
            # All of it leaves more than the budget gives, so the first one decides, and `check_cache` looks.
            "mem_fraction_static": 1.0,
            "chunked_prefill_size": PREFILLED,
            "cuda_graph_max_bs_decode": settings.requests,
            # The graphs of prefills keep inputs as weak references in this version, whose memory later captures use
            # again: what is replayed may read another prompt's values. Prompts are an eighth of the tokens.
            "disable_prefill_cuda_graph": True,
            "enable_memory_saver": settings.takes_turns,  # else `give_back_cache` gives nothing back
        }
    return arguments | {
        "device": "cpu",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.5,
    }


def _use_plain_cpu() -> None:
    """Let SGLang run on torch's own CPU kernels: its CPU engine wants others."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "0"
    torch.set_num_threads(1)
    _find_torchvision()
    from sglang.srt import platforms

    from orchestrator.engines.sglang.cpu_platform import PlainCpu

    platforms._current_platform = PlainCpu()


def _find_torchvision() -> None:
    """Make torchvision importable, whose wheels are built for GPUs: SGLang looks functions up that it never calls here.

    It lies aside (`docker/lock/install.py`), since transformers would import it in every process and fail. The
    operators that it takes for granted are declared before that. Beside torch's build for GPUs it is there.
    """
    aside = str(Path(sys.prefix) / "sglang-only")
    # A spawned process has its parent's path, this folder in it, but none of the operators that its parent declared.
    if aside not in sys.path:
        if importlib.util.find_spec("torchvision") is not None:
            return
        sys.path.append(aside)
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


# --- calls ---


def custom_parameters(draw: Drawing) -> tuple[str, dict[str, Any]]:
    """How a request names its parameters: the processor that lets them through to the sampler, and they themselves.

    Which processor it is does not matter: the sampler calls none.
    """
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    return DisallowedTokensLogitsProcessor.to_str(), draw.as_parameters()


async def update_weights(engine: Any, folder: str, version: str) -> None:
    """Put the weights of a model folder into a running engine, and empty its prefix cache. Raises RuntimeError."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    asked = UpdateWeightFromDiskReqInput(
        model_path=folder, weight_version=version, flush_cache=True, abort_all_requests=True
    )
    done, message, *_ = await engine.tokenizer_manager.update_weights_from_disk(asked, None)
    if not done:
        raise RuntimeError(f"the weights in {folder} cannot be loaded: {message}")


async def give_back_cache(engine: Any) -> None:
    """Give back the memory of an engine's KV cache, once nothing runs in it; on CPUs it only counts as given back."""
    from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

    manager = engine.tokenizer_manager
    # The scheduler may still be at the end of its last batch, and it dies when it is asked before that.
    emptied = await manager.flush_cache(timeout_s=IDLE_WITHIN_S)
    if not emptied.success:
        raise RuntimeError(f"SGLang is not idle {IDLE_WITHIN_S:.0f} s after its last response: {emptied.message}")
    await manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=[KV_CACHE]))


async def take_cache(engine: Any) -> None:
    """Take the memory for the KV cache again; it comes back empty."""
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

    await engine.tokenizer_manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=[KV_CACHE]))


def last_sign(engine: Any) -> float:
    """When the engine's scheduler was last heard of: it tells of running requests every few dozen tokens."""
    return engine.tokenizer_manager.last_receive_tstamp


# --- sampling ---


class Fetched:
    """A tensor on its way to the host; rows of it are waited for when they are asked for."""

    def __init__(self, rows: Tensor):
        self._event = None
        if rows.is_cuda:
            self._host = rows.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = rows
        self._rows: Any | None = None

    def __getitem__(self, row: int) -> Any:
        if self._rows is None:
            if self._event is not None:
                self._event.synchronize()
            self._rows = self._host.numpy()
        return self._rows[row]


def keyed_uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """float64 uniforms (B,) in [0, 1) of pairs of seed and position, both int64: SplitMix64 (Steele et al. 2014).

    Products and sums wrap around, as those of unsigned words do; shifts are made logical by a mask.
    """

    def shifted(words: Tensor, by: int) -> Tensor:
        return (words >> by) & ((1 << (64 - by)) - 1)

    state = seeds + positions * -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed word
    state = (state ^ shifted(state, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    state = (state ^ shifted(state, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    state = state ^ shifted(state, 31)
    return shifted(state, 11).double() * 2.0**-53


def token_space() -> tuple[TokenSpace, Owner]:
    """How this engine reads logits, and whose they are."""
    if not _space:
        valid, student_eos, teacher_eos, owner = os.environ[SPACE].split(",")
        assert owner in ("student", "teacher")
        _space.append((TokenSpace(int(valid), int(student_eos), int(teacher_eos)), owner))
    return _space[0]


def draw_tokens(
    logits: Tensor, draws: list[dict[str, Any]], positions: Tensor, shards: Any = None
) -> tuple[Tensor, dict[str, Fetched]]:
    """The next token (B,) of each request, and what is kept of it, from logits (B, V).

    `draws` are the fields of `Draw`; `positions` (B,) are those of the last token that was fed; `shards` is the process
    group of an engine of several. Nothing here waits for the device, except where tokens are forced.
    """
    rows = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    tokens, log_probs, support = [], [], []
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        drawn = _draw_part(logits[part], draws[part], positions[part], shards)
        tokens.append(drawn[0])
        log_probs.append(drawn[1])
        support.append(drawn[2])
    kept = {LOG_PROBS: Fetched(torch.cat(log_probs))}
    if draws[0]["support"]:
        kept[SUPPORT] = Fetched(torch.cat(support))
    return torch.cat(tokens), kept


def _draw_part(
    logits: Tensor, draws: list[dict[str, Any]], positions: Tensor, shards: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (b,), log p and log μ of each (b, 2), and support ids (b, K) of a part of a batch."""
    space, owner = token_space()
    log_p = space.student_log_prob(logits) if owner == "student" else space.teacher_log_prob(logits)
    tau = draws[0]["tau"]  # requests that are decoded together are of one call, and so of one behavior
    log_mu = laws.law(Student() if tau == 1 else Tempered(tau), log_p, None).log_mu
    known = torch.tensor([(draw["seed"], draw["prompt"]) for draw in draws]).to(logits.device, non_blocking=True)
    responses = positions - known[:, 1] + 1
    tokens = speculation.sample(log_mu, keyed_uniforms(known[:, 0], responses))
    if shards is not None:
        tokens = agreed(tokens, shards)
    if any(draw["forced"] for draw in draws):
        for row, (draw, position) in enumerate(zip(draws, responses.tolist(), strict=True)):
            if position < len(draw["forced"]):
                tokens[row] = draw["forced"][position]
    both = [speculation.log_prob_of(tokens, log_prob) for log_prob in (log_p, log_mu)]
    support = log_p.topk(draws[0]["support"], dim=-1).indices.int()
    return tokens, torch.stack(both, -1).float(), support


def _sampler_class() -> Any:
    """SGLang's sampler with our own drawing."""
    from sglang.srt.layers.sampler import Sampler

    class TokenSpaceSampler(Sampler):
        """Draws in the setup's token space; see `draw_tokens`."""

        def forward(
            self,
            logits_output: Any,
            sampling_info: Any,
            return_logprob: bool,
            top_logprobs_nums: list[int],
            token_ids_logprobs: list[list[int]],
            positions: Tensor,
        ) -> Tensor:
            logits = logits_output.next_token_logits
            if sampling_info.custom_params is None:  # nobody's request: what an engine does to warm up
                return logits.argmax(-1)
            draws, shards = sampling_info.custom_params, self.tp_sync_group
            tokens, logits_output.customized_info = draw_tokens(logits, draws, positions, shards)
            return tokens

    return TokenSpaceSampler
