"""Uses SGLang's private parts, read in one version. Imported only in an engine's own processes.

SGLang spawns a server's processes. Each imports `engines.sglang.server`, which calls `prepare`, so
that all of them have the platform and the sampler below. The sampler replaces SGLang's own through
its registry of sampling backends, and draws as `verdict.draw_tokens` does.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import Store, TCPStore

from orchestrator.engines.common.tensor_digests import tensor_digest
from orchestrator.engines.memory import PREFILLED
from orchestrator.engines.sglang.process import Drawing, LoadTensors, Settings
from orchestrator.engines.sglang.verdict import KERNEL, SPACE, draw_tokens
from orchestrator.errors import EngineOutOfMemory

VERSION = "0.5.20"
BACKEND = "trb"  # name of the sampler among SGLang's sampling backends
KV_CACHE = "kv_cache"  # SGLang's tag of that memory
IDLE_WITHIN_S = 60.0
LARGEST_PAGE = 128  # most tokens in a page of SGLang's KV cache
BLOCK_TOKENS = 64  # room beyond the longest sequence: SGLang wants more than a page of it

# SGLang's models that hold each tensor as its file does, but for these fused layers.
HELD_AS_IN_FILES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
DIFFERS = "differs between shards"  # in place of a digest

_libraries: list[torch.library.Library] = []  # operators exist as long as their library


# --- processes ---


def check_version() -> None:
    """Raise RuntimeError unless the installed SGLang has the version of this file."""
    found = importlib.metadata.version("sglang")
    if found != VERSION:
        raise RuntimeError(
            f"sglang {found} is installed: expected {VERSION}, "
            "whose inside this program was written for"
        )


def prepare() -> None:
    """Set up a process for SGLang before its import. Each process of an engine calls it."""
    check_version()
    _listen_on_loopback()
    if not torch.cuda.is_available():
        _use_plain_cpu()
    from sglang.srt.layers.sampler import register_sampler_backend

    for name in (BACKEND, "pytorch"):  # on CPUs SGLang always takes the latter
        register_sampler_backend(name, _sampler_class())
    _let_padding_read_zeros()
    _let_schedulers_digest()
    _let_calls_name_stop_ids()
    _let_updates_be_refused()


def _let_padding_read_zeros() -> None:
    """Clear the memory that a batch's padding reads, whenever the cache's memory returns undefined.

    Batches are padded to the sizes of captured CUDA graphs. Padding reads the first entry of the
    table of requests, which lies in that memory, as a slot number: any garbage would be an address.
    """
    updater = importlib.import_module("sglang.srt.managers.scheduler_components.weight_updater")
    manager = updater.SchedulerWeightUpdaterManager
    resume = manager.resume_memory_occupation

    def resume_cleared(self: Any, request: Any) -> Any:
        answer = resume(self, request)
        self.tp_worker.model_runner.req_to_token_pool.req_to_token[0].zero_()
        return answer

    manager.resume_memory_occupation = resume_cleared


def _let_calls_name_stop_ids() -> None:
    """End responses at the ids of a call alone: a setup may not take the ids in a model's files."""
    config = importlib.import_module("sglang.srt.configs.model_config")
    config.ModelConfig._get_hf_eos_token_id = lambda self: set()


def _let_schedulers_digest() -> None:
    """Give each scheduler the method that `tensor_digests` calls."""
    scheduler = importlib.import_module("sglang.srt.managers.scheduler")
    scheduler.Scheduler.write_digests = _write_digests


def _let_updates_be_refused() -> None:
    """Answer an update from unfit tensors with its error, as SGLang answers one from unfit files.

    SGLang would end the scheduler.
    """
    worker = importlib.import_module("sglang.srt.managers.tp_worker").BaseTpWorker
    update = worker.update_weights_from_tensor

    def answered(self: Any, request: Any) -> tuple[bool, str]:
        try:
            return update(self, request)
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"

    worker.update_weights_from_tensor = answered


def _listen_on_loopback() -> None:
    """Let the torch store of an engine's ranks listen on its given host, not on all interfaces."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")

    def create(
        host: str, port: int, rank: int, ranks: int, timeout: timedelta, use_libuv: bool = True
    ) -> Store:
        first = rank == 0
        listening = socket.create_server((host, port)).detach() if first else None
        return TCPStore(
            host, port, ranks, first, timeout, master_listen_fd=listening, use_libuv=use_libuv
        )

    rendezvous._create_c10d_store = create  # pyright: ignore[reportAttributeAccessIssue]


def open_engine(settings: Settings) -> Any:
    """Start SGLang's engine in the weights of `settings.model`."""
    space = (settings.valid, settings.student_eos, settings.teacher_eos, settings.owner)
    os.environ[SPACE] = json.dumps(space)
    os.environ[KERNEL] = "1" if settings.kernel else ""
    # The setup may ask for more than a model's configuration allows; other engines permit it, too.
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if settings.shards > 1 and not settings.gpu:
        # SGLang wants cores for each shard, and counts these entries. The plain platform binds none.
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join("0" * settings.shards)
    if settings.second is not None:
        from orchestrator.engines.sglang import blending_worker

        return check_cache(blending_worker.open_engine(settings, _arguments(settings)), settings)
    from sglang.srt.entrypoints.engine import Engine

    return check_cache(Engine(**_arguments(settings)), settings)


def check_cache(engine: Any, settings: Settings) -> Any:
    """Return the engine, unless its KV cache has another size; SGLang only warns.

    Raises EngineOutOfMemory for a smaller cache: SGLang found less free memory than was granted, as
    when another process has taken some since. RuntimeError for a larger one.
    """
    there = engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"]
    # SGLang makes whole pages only, of 1 token on an H100, and of 64 on a B200.
    if settings.cache_tokens - LARGEST_PAGE < there <= settings.cache_tokens:
        return engine
    engine.shutdown()
    kind = EngineOutOfMemory if there < settings.cache_tokens else RuntimeError
    raise kind(
        f"SGLang made a KV cache of {there} tokens where {settings.cache_tokens} were granted"
    )


def _arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of SGLang's engine; see its `ServerArgs`."""
    arguments: dict[str, Any] = {
        "model_path": settings.model,
        "skip_tokenizer_init": True,  # token ids go in and come out
        "dtype": settings.dtype,
        "attention_backend": settings.attention,  # see `toolchain`; None leaves it to SGLang
        "context_length": settings.context + BLOCK_TOKENS,
        "sampling_backend": BACKEND,
        "enable_custom_logit_processor": True,  # passes a request's parameters on to the sampler
        "grammar_backend": "none",
        "skip_server_warmup": True,
        "sleep_on_idle": True,  # else an engine that waits for a call keeps a core busy
        "random_seed": 0,
        "log_level": "error",
        # SGLang's own: with float32 models its head is in float32 anyway.
        "enable_fp32_lm_head": settings.precise_head and settings.dtype != "float32",
        "tp_size": settings.shards,
        "max_total_tokens": settings.cache_tokens,
        "max_running_requests": settings.requests,
    }
    if settings.gpu:
        return arguments | {
            # The pool's size is the smaller of `max_total_tokens` and this share of free memory. A
            # full share exceeds the budget: the former decides, and `check_cache` verifies it.
            "mem_fraction_static": 1.0,
            "chunked_prefill_size": PREFILLED,
            "cuda_graph_max_bs_decode": settings.requests,
            # In this version graphs of prefills hold inputs by weak references, and later captures
            # reuse their memory: a replay may read another prompt's values. Prompts are an eighth
            # of tokens.
            "disable_prefill_cuda_graph": True,
            "enable_memory_saver": settings.takes_turns,  # `give_back_cache` needs it
        }
    return arguments | {
        "device": "cpu",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.5,
    }


def _use_plain_cpu() -> None:
    """Let SGLang run on torch's own CPU kernels; its CPU engine needs others."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "0"
    torch.set_num_threads(1)
    _find_torchvision()
    from sglang.srt import platforms

    platforms._current_platform = _plain_cpu()


def _plain_cpu() -> Any:
    """SGLang's platform for machines without a GPU: torch's own kernels, for tests."""
    from sglang.srt.platforms.cpu import CpuSRTPlatform
    from sglang.srt.platforms.device_mixin import PlatformEnum

    class PlainCpu(CpuSRTPlatform):
        """An out-of-tree platform: SGLang asks it instead of looking for its CPU engine's kernels."""

        _enum = PlatformEnum.OOT

        def get_default_attention_backend(self) -> str:
            return "torch_native"

        def support_cuda_graph(self) -> bool:
            return False

        def support_piecewise_cuda_graph(self) -> bool:
            return False

        def get_dispatch_key_name(self) -> str:
            return "native"

        def get_mha_kv_pool_cls(self) -> Any:
            from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

            return MHATokenToKVPool

        def get_paged_allocator_cls(self) -> Any:
            from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

            return PagedTokenToKVPoolAllocator

    return PlainCpu()


def _find_torchvision() -> None:
    """Make torchvision importable for SGLang, which looks up functions that it never calls here.

    Its wheels are built for GPUs. With torch's build for CPUs it lies aside
    (`docker/lock/install.py`), since transformers would import it in every process and fail. The
    operators that it expects are declared first. Torch's build for GPUs has it installed.
    """
    aside = str(Path(sys.prefix) / "sglang-only")
    # A spawned process inherits the path with this folder, but not its parent's declared operators.
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
    """A request's logit processor, which lets parameters through to the sampler, and parameters.

    Any processor will do: the sampler calls none.
    """
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    return DisallowedTokensLogitsProcessor.to_str(), draw.as_parameters()


async def update_weights(engine: Any, folder: str, version: str) -> None:
    """Load a folder's weights into a running engine, and empty its prefix cache. RuntimeError."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    asked = UpdateWeightFromDiskReqInput(
        model_path=folder, weight_version=version, flush_cache=True, abort_all_requests=True
    )
    done, message, *_ = await engine.tokenizer_manager.update_weights_from_disk(asked, None)
    if not done:
        raise RuntimeError(f"the weights in {folder} cannot be loaded: {message}")


class _Opened:
    """Pickles as the tensor that an `opener` returns in the process that reads the pickle."""

    def __init__(self, opener: tuple[Any, tuple[Any, ...]]):
        self._opener = opener

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._opener


async def take_weights(engine: Any, call: LoadTensors) -> None:
    """Load the tensors of a call into a running engine, and empty its prefix cache. RuntimeError.

    Each scheduler opens the memory itself and copies its shard. Its unpickler admits names of torch
    and SGLang alone; the pickle is from here.
    """
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorMetadata

    metadata = [
        FlattenedTensorMetadata(
            name=span.name,
            shape=torch.Size(span.shape),
            dtype=getattr(torch, span.dtype),
            start_idx=span.start,
            end_idx=span.end,
            numel=span.end - span.start,
        )
        for span in call.spans
    ]
    bucket = pickle.dumps({"flattened_tensor": _Opened(call.opener), "metadata": metadata})
    asked = UpdateWeightsFromTensorReqInput(
        serialized_named_tensors=[bucket] * engine.server_args.tp_size,
        load_format="flattened_bucket",
        weight_version=call.version,
        flush_cache=True,
        abort_all_requests=True,
    )
    done, message = await engine.tokenizer_manager.update_weights_from_tensor(asked, None)
    if not done:
        raise RuntimeError(f"the weights of the trainer cannot be loaded: {message}")


def tensor_digests(engine: Any) -> dict[str, str]:
    """Digests of the tensors in an idle engine, by Hugging Face name; see `_tensor_parts`."""
    with tempfile.TemporaryDirectory(prefix="trb-digests-") as folder:
        path = Path(folder) / "digests.json"
        engine.collective_rpc("write_digests", path=str(path))
        return json.loads(path.read_text(encoding="utf-8"))


def _write_digests(scheduler: Any, path: str) -> None:
    """Write digests of the model's tensors; a method of the scheduler of each shard.

    The first shard gathers each split tensor, digests it and writes the file. A tensor that all
    shards hold must be the same in all, else its digest says that it is not.
    """
    group = scheduler.tp_group.cpu_group
    digests: dict[str, str] = {}
    for name, part, dim in _tensor_parts(scheduler.tp_worker.model_runner.model):
        if distributed.get_world_size(group) > 1 and not part.is_cuda and ".mlp." in name:
            continue  # on CPUs SGLang pads the widths of sharded MLPs
        parts = _gathered(part, group)
        if not parts:  # another shard than the first
            continue
        if dim is None:
            each = {tensor_digest(tensor) for tensor in parts}
            digests[name] = each.pop() if len(each) == 1 else DIFFERS
        else:
            digests[name] = tensor_digest(torch.cat(parts, dim))
    if distributed.get_rank(group) == 0:
        Path(path).write_text(json.dumps(digests), encoding="utf-8")


def _tensor_parts(model: Any) -> Iterator[tuple[str, Tensor, int | None]]:
    """Name, this shard's part and split dimension of each tensor; None if each shard has all of it.

    Fused layers come in their parts. Key and value heads that several shards share are left out,
    and so are models whose tensors SGLang may hold in another form than their files.
    """
    if type(model).__name__ not in HELD_AS_IN_FILES:
        return
    for place, module in model.named_modules():
        parent, _, own = place.rpartition(".")
        kinds = {kind.__name__ for kind in type(module).__mro__}
        for parameter, tensor in module.named_parameters(recurse=False):
            if own in FUSED:
                sizes = [size // module.tp_size for size in module.output_sizes]
                shared = getattr(module, "num_kv_head_replicas", 1) > 1
                for name, part in zip(FUSED[own], tensor.split(sizes), strict=True):
                    if name == "q_proj" or not shared:
                        yield f"{parent}.{name}.{parameter}", part, 0
            elif "RowParallelLinear" in kinds and parameter == "weight":
                yield f"{place}.{parameter}", tensor, 1
            elif "VocabParallelEmbedding" in kinds:
                # Padded to a size that the shards can divide, behind the rows of the last shard.
                first = module.shard_indices.org_vocab_start_index
                rows = module.shard_indices.org_vocab_end_index - first
                yield f"{place}.{parameter}", tensor[:rows], 0
            else:
                split = "ColumnParallelLinear" in kinds
                yield f"{place}.{parameter}", tensor, 0 if split else None


def _gathered(part: Tensor, group: Any) -> list[Tensor]:
    """All shards' parts of a tensor, in order, on the host of the first; empty on the others."""
    held = part.detach().cpu()
    if distributed.get_world_size(group) == 1:
        return [held]
    gathered: list[Any] | None = None
    if distributed.get_rank(group) == 0:
        gathered = [None] * distributed.get_world_size(group)
    distributed.gather_object(held, gathered, distributed.get_global_rank(group, 0), group)
    return gathered or []


async def give_back_cache(engine: Any) -> None:
    """Release the memory of an idle engine's KV cache; on CPUs the release is only nominal."""
    from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

    manager = engine.tokenizer_manager
    # The scheduler may still be ending its last batch, and would die if asked before that.
    emptied = await manager.flush_cache(timeout_s=IDLE_WITHIN_S)
    if not emptied.success:
        raise RuntimeError(
            f"SGLang is not idle {IDLE_WITHIN_S:.0f} s after its last response: {emptied.message}"
        )
    await manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=[KV_CACHE]))


async def take_cache(engine: Any) -> None:
    """Allocate the memory of the KV cache again, as an empty cache."""
    from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

    await engine.tokenizer_manager.resume_memory_occupation(
        ResumeMemoryOccupationReqInput(tags=[KV_CACHE])
    )


def last_sign(engine: Any) -> float:
    """Time of the scheduler's last report; it reports running requests every few dozen tokens."""
    return engine.tokenizer_manager.last_receive_tstamp


# --- sampling ---


def _sampler_class() -> Any:
    """A subclass of SGLang's sampler with our own drawing."""
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
            if sampling_info.custom_params is None:  # no request: the engine is warming up
                return logits.argmax(-1)
            draws, shards = sampling_info.custom_params, self.tp_sync_group
            tokens, logits_output.customized_info = draw_tokens(logits, draws, positions, shards)
            return tokens

    return TokenSpaceSampler


# --- one kernel, built and tried before any engine starts ---


def build_one_kernel(architecture: tuple[int, int] | None = None) -> None:
    """Build the kernel for this GPU and check its result; with an `architecture`, only build it.

    SGLang compiles `clamp_position` at its first decoding step, calls it at each step, and has no
    other implementation on GPUs. Building alone needs no GPU. Raises the errors of SGLang's build
    with the compiler's output, and RuntimeError for a wrong result. It has run for an architecture,
    never on a GPU.
    """
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.ops.attention import clamp_position

    if architecture is not None:
        with override_jit_cuda_arch(*architecture):
            clamp_position._jit_clamp_position_module(torch.int64)
        return
    lengths = torch.tensor([0, 1, 7], device="cuda")
    positions = clamp_position.clamp_position_cuda(lengths).tolist()
    if positions != [0, 0, 6]:
        raise RuntimeError(
            f"SGLang's clamp_position made {positions} of lengths [0, 1, 7], and not [0, 0, 6]"
        )
