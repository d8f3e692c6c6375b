"""Blended decoding inside SGLang's scheduler process, as a speculative algorithm of our own.

Blending touches private parts of SGLang in this file alone. They change from version to version:
`private` pins the version and checks it in each process, and the parity test
(`tests/engines/sglang/test_blending.py`) must pass before the pin moves.

SGLang's main model is the student, from which responses are sampled. Its second model, the "draft
model" in SGLang's words, is the teacher. SGLang's operations on its main model then apply to the
student: swapped weights, flushed cache, ordinary decoding. A round is the one of
`engines.torch.decoding`:

1. The student decodes γ tokens, the first one after the pending token. Each step is an ordinary
   decoding step.
2. The teacher reads the pending token and all drafts but the last in one pass, an ordinary prefill
   of γ tokens behind a cached prefix.
3. `verdict` decides. Both models have written the KV of the same tokens into the same slots; the
   first `count` slots stay.

The first token of a response is a round of γ = 1 on the last distributions of both prefills. Every
distribution is read at its own prefix only: without a bonus token, and without a shifted draft
context. SGLang's own verification (EAGLE's) is not used. It hides the first prompt token from the
draft model, samples the first token of a response from one model alone, and draws a bonus token
that would need one more student distribution.

Sampling stays exact under SGLang's handling of requests:

- Prefix-cache hits, chunked prefill, retraction: slots hold the KV of both models for the same
  tokens, also if another request wrote them, and every uniform belongs to its sequence and
  position. A retracted request continues where it stopped.
- Overlapped scheduling is off: the worker reads the pending token from the request and puts rows on
  it, which requires an up-to-date request. A round waits for its own verdict anyway.
- CUDA graphs are off: SGLang captures a speculative algorithm's main model for tree verification,
  which does not run here, and no graph of this version has been shown to be exact on a GPU.
- Mixed prefill and decoding in one batch is off: its rows would be of two kinds.

Shapes: B requests of a batch, γ drafts, V vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.layers.logits_processor import LogitsMetadata
from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache import allocation
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative import spec_registry
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from torch import Tensor

from orchestrator.engines.memory import PREFILLED_BY_TWO, fitting_round
from orchestrator.engines.sglang.blending_rows import Order, agreed
from orchestrator.engines.sglang.process import ROWS, Settings
from orchestrator.engines.sglang.verdict import (
    Drafts,
    Randomness,
    forced_ids,
    sampled,
    uniforms_of,
    verdict,
)
from orchestrator.policy.randomness import Role

# pyright: reportMissingImports=false


ALGORITHM = "TRUST_REGION_BLENDING"


def run_scheduler(*args: Any, **options: Any) -> None:
    """Run the scheduler process; a module-level function, so that a new process can import it."""
    register()
    run_scheduler_process(*args, **options)


def register() -> None:
    """Register the algorithm in this process; `private.prepare` has checked SGLang's version."""
    if spec_registry.get_spec(ALGORITHM) is not None:
        return
    SpeculativeAlgorithm.register(ALGORITHM, spec_class=_Algorithm)(lambda _: BlendingWorker)
    if not torch.cuda.is_available():
        allocation.assign_req_to_token_pool_func = _assign_slots


def _assign_slots(
    rows: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, batch_size: int
) -> None:
    """Write the slots of new tokens into the table of requests, in place of SGLang's GPU kernel."""
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[row, start:end] = slots[taken : taken + end - start]
        taken += end - start


class BlendingEngine(Engine):
    """SGLang's engine with the algorithm in its scheduler process."""

    run_scheduler_process_func = staticmethod(run_scheduler)


def open_engine(settings: Settings, arguments: dict[str, Any]) -> Engine:
    """Open the engine of both models; `arguments` are for the engine of the student alone."""
    register()
    second = settings.second
    assert second is not None
    blending = {
        "speculative_algorithm": ALGORITHM,
        "speculative_draft_model_path": second.model,
        "speculative_eagle_topk": 1,
        "speculative_num_steps": max(1, second.drafted - 1),
        "speculative_num_draft_tokens": second.drafted,
        "chunked_prefill_size": second.prefilled or PREFILLED_BY_TWO,
        "page_size": 1,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
    }
    return BlendingEngine(**(arguments | blending))


class _Algorithm(CustomSpecAlgo):
    """The algorithm for SGLang's scheduler, unlike any built-in kind."""

    create_future_map = SpeculativeAlgorithm.create_future_map

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False


class BlendingWorker(BaseSpecWorker):
    """The student, the teacher, and the rounds of blended decoding of one scheduler process."""

    def __init__(
        self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: TpModelWorker
    ):
        super().__init__()
        self._gamma = int(get_spec().speculative_num_draft_tokens)
        self._target_worker = target_worker
        self._draft_worker = TpModelWorker(
            server_args=server_args,
            gpu_id=gpu_id,
            ps=ps,
            nccl_port=nccl_port,
            is_draft_worker=True,
            context_length=target_worker.model_runner.model_config.context_len,
            random_seed=target_worker.random_seed,
        )
        self._student = target_worker.model_runner
        self._teacher = self._draft_worker.model_runner
        self._shards = get_tp_group().device_group
        self._device = torch.device(self._student.device)
        self._randomness = Randomness()

    def _draft_model_runners(self) -> tuple[Any, ...]:
        return (self._teacher,)

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        return (self._student.attn_backend, self._teacher.attn_backend)

    def init_cuda_graphs(self) -> None:
        self._draft_worker.init_cuda_graphs(capture_decode_cuda_graph=False)

    def update_weights_from_tensor(self, request: Any) -> tuple[bool, str]:
        """Give new weights to the student."""
        return self._target_worker.update_weights_from_tensor(request)

    def update_weights_from_disk(self, recv_req: Any) -> tuple[bool, str]:
        """Keep the teacher's weights: SGLang has already updated the main model, the student."""
        return True, "the teacher keeps its weights"

    def forward_batch_generation(self, batch: Any, **_: Any) -> GenerationBatchResult:
        """Run a prefill, with the first token of completed prompts, or a round of decoding."""
        if batch.forward_mode.is_extend():
            return self._prefill(batch)
        return self._round(batch)

    def _prefill(self, batch: Any) -> GenerationBatchResult:
        """Feed the new part of each prompt to both models; complete prompts get a first token."""
        student_logits = self._logits(batch, self._student)
        teacher_logits = self._logits(batch, self._teacher)
        tokens = torch.zeros(len(batch.reqs), dtype=torch.int64, device=batch.device)
        # A prompt's chunk before the last is followed by the rest of the prompt, not by a new
        # token.
        complete = [row for row, req in enumerate(batch.reqs) if req.inflight_middle_chunks <= 0]
        if complete:
            rows = torch.tensor(complete, device=batch.device)
            reqs = [batch.reqs[row] for row in complete]
            space = _order(reqs[0]).space
            draws, forced = self._given(reqs, 1)
            log_p = space.student_log_prob(student_logits[rows])
            drafts = sampled(
                log_p, draws[:, Role.DRAFT, 0], None if forced is None else forced[:, 0]
            )

            def log_q(part: Tensor) -> Tensor:
                return space.teacher_log_prob(teacher_logits[rows[part]])[:, None]

            proposed = Drafts(
                agreed(drafts, self._shards)[:, None],
                log_p[:, None],
                log_q,
                draws,
                forced,
            )
            tokens[rows] = self._emit(reqs, proposed)[0][:, 0]
        return GenerationBatchResult(
            next_token_ids=tokens,
            new_seq_lens=batch.seq_lens,
            speculative_num_draft_tokens=self._gamma,
        )

    def _round(self, batch: Any) -> GenerationBatchResult:
        """Decode γ student drafts for each request, run one teacher pass, and judge."""
        reqs = batch.reqs
        start = batch.seq_lens
        start_cpu = batch.seq_lens_cpu
        for req, cached in zip(reqs, start_cpu.tolist(), strict=True):
            if cached != len(req.origin_input_ids) + len(req.output_ids) - 1:
                raise RuntimeError(
                    f"request {req.rid}: {cached} cached tokens, not all but the pending one"
                )
        # Drafts beyond the length limit of the shortest request are of use to no request.
        left = max(_order(req).max_tokens - len(req.output_ids) for req in reqs)
        # More drafts than the budget's round has room for would take the caches' memory.
        most = min(self._gamma, fitting_round(self._student.model_config.vocab_size, len(reqs)))
        length = min(most, left, max(_order(req).drafted for req in reqs))
        # SGLang reserves slots for γ drafts behind each request before it calls the worker.
        table = batch.req_to_token_pool.req_to_token
        positions = start[:, None] + torch.arange(length, device=batch.device)
        slots = table[batch.req_pool_indices.long()[:, None], positions].to(torch.int64)
        draws, forced = self._given(reqs, length)
        space = _order(reqs[0]).space

        fed = [torch.tensor([req.output_ids[-1] for req in reqs], device=batch.device)]
        log_p = torch.empty(
            len(reqs), length, self._student.model_config.vocab_size, device=batch.device
        )
        for step in range(length):
            batch.forward_mode = ForwardMode.DECODE
            batch.input_ids = fed[-1]
            batch.out_cache_loc = slots[:, step].contiguous()
            _set_lengths(batch, start + step + 1, start_cpu + step + 1)
            log_p[:, step] = space.student_log_prob(self._logits(batch, self._student))
            at_step = None if forced is None else forced[:, step]
            fed.append(
                agreed(sampled(log_p[:, step], draws[:, Role.DRAFT, step], at_step), self._shards)
            )

        batch.forward_mode = ForwardMode.EXTEND
        batch.input_ids = torch.stack(fed[:-1], 1).flatten()
        batch.out_cache_loc = slots.flatten()
        _set_lengths(batch, start + length, start_cpu + length)
        batch.prefix_lens = start_cpu.tolist()
        batch.extend_lens = [length] * len(reqs)
        batch.extend_num_tokens = length * len(reqs)
        head = self._teacher_head(batch)

        def log_q(part: Tensor) -> Tensor:
            return space.teacher_log_prob(head(part, length))

        proposed = Drafts(torch.stack(fed[1:], 1), log_p, log_q, draws, forced)
        tokens, count = self._emit(reqs, proposed)
        return GenerationBatchResult(
            next_token_ids=tokens.flatten(),
            accept_lens=count,
            new_seq_lens=start + count,
            speculative_num_draft_tokens=length,
        )

    def _given(self, reqs: list[Any], length: int) -> tuple[Tensor, Tensor | None]:
        """The uniforms of each request's next γ = `length` positions, and the ids forced there."""
        orders: list[Order] = []
        start: list[int] = []
        of_requests: list[Tensor] = []
        for req in reqs:
            orders.append(_order(req))
            start.append(len(req.output_ids))
            of_requests.append(self._uniforms(req))
        draws = self._randomness.draws(of_requests, start, length)
        return draws, forced_ids(orders, start, length, self._device)

    def _uniforms(self, req: Any) -> Tensor:
        """The uniforms of a request, made once and kept on it."""
        if not hasattr(req, "blending_draws"):
            req.blending_draws = uniforms_of(_order(req), self._device)
        return req.blending_draws

    def _emit(self, reqs: list[Any], drafts: Drafts) -> tuple[Tensor, Tensor]:
        """Judge the drafts, and put a record of each emitted token on its request.

        Returns the tokens (B, γ) and the number of emitted ones (B,).
        """
        emitted = verdict([_order(req) for req in reqs], drafts)
        for req, records in zip(reqs, emitted.records, strict=True):
            _returned(req).extend(records)
        return agreed(emitted.tokens, self._shards), agreed(emitted.count, self._shards)

    def _logits(self, batch: Any, runner: Any) -> Tensor:
        """Logits (B, V) after the last token fed to each request."""
        forward = _forward_batch(batch, runner, CaptureHiddenMode.NULL)
        return runner.forward(forward).logits_output.next_token_logits

    def _teacher_head(self, batch: Any) -> Callable[[Tensor, int], Tensor]:
        """Run one pass over γ tokens of each request; returns a function that computes logits.

        It maps indices (b,) of requests to logits (b, γ, V), from the pass's hidden states. Logits
        of all requests at once would take as much memory as the caches of many.
        """
        runner = self._teacher
        forward = _forward_batch(batch, runner, CaptureHiddenMode.FULL)
        output: Any = runner.forward(forward).logits_output
        hidden: Tensor = output.hidden_states
        model: Any = runner.model
        metadata = LogitsMetadata.from_forward_batch(forward)

        def head(part: Tensor, length: int) -> Tensor:
            rows = hidden.view(-1, length, hidden.shape[-1])[part].flatten(0, 1)
            logits = model.logits_processor._get_logits(
                rows, model.lm_head, metadata, use_logits_buffer=False
            )
            return logits.view(len(part), length, -1)

        return head


def _forward_batch(batch: Any, runner: Any, hidden: CaptureHiddenMode) -> ForwardBatch:
    return ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=hidden, return_hidden_states_before_norm=False
    )


def _set_lengths(batch: Any, lengths: Tensor, lengths_cpu: Tensor) -> None:
    """Set the tokens of each request after a pass; SGLang restores the fields after the round."""
    batch.seq_lens = lengths
    batch.seq_lens_cpu = lengths_cpu
    batch.seq_lens_sum = int(lengths_cpu.sum())


def _order(req: Any) -> Order:
    """The order of a request, parsed once and kept on it."""
    if not hasattr(req, "blending_order"):
        req.blending_order = Order.of_parameters(req.sampling_params.custom_params)
    return req.blending_order


def _returned(req: Any) -> list[Any]:
    """The records returned with a request's tokens; SGLang truncates the list with the response."""
    if req.customized_info is None:
        req.customized_info = {}
    return req.customized_info.setdefault(ROWS, [])
