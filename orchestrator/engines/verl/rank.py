"""One rank, with its shards of the student and the teacher, in its own or the caller's process.

All ranks get the same calls in the same order, each with its own micro-batches: a forward pass is a
collective. This file runs the losses and statistics of `engines.common` inside the sharded forward
pass. `engines.verl.member` is the process of one of several ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save as serialized
from safetensors.torch import save_file
from torch import Tensor

from orchestrator.engines.common.causal import best_device, checked_model
from orchestrator.engines.common.learning import (
    MicroBatch,
    Readings,
    head_logits,
    measure,
    summed_objective,
)
from orchestrator.engines.common.passes import Passes, attention_for, fuse_norms, padded
from orchestrator.engines.common.scoring import read_model
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.device import drop_garbage
from orchestrator.engines.interface import Job, Owner
from orchestrator.engines.memory import by_kernel
from orchestrator.liveness import heartbeat
from orchestrator.policy.spec import Objective
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import damaged
from orchestrator.records.rundir import LEARNER_FOLDER
from orchestrator.rollouts import TeacherScores

if TYPE_CHECKING:
    from orchestrator.engines.verl.library import ShardedModel


MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OpenedModel:
    """A model over all ranks, with its token space and pass options."""

    model: ShardedModel
    space: TokenSpace
    dtype: torch.dtype  # of the forward pass
    packed: bool
    precise_head: bool

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """Logits (N, V) of hidden states (N, H) and the head (V, H), as `CausalModel.head`."""
        return head_logits(hidden, head) if self.precise_head else hidden @ head.T


class Rank:
    """Rank `number` of `ranks`, which meet in the folder `meeting`; a single rank needs none."""

    def __init__(self, number: int = 0, ranks: int = 1, meeting: str | None = None):
        torch.set_num_threads(1)
        self._number = number
        self._ranks = ranks
        self._device = best_device()
        if self._device.type == "cuda":
            torch.cuda.set_device(number)
            self._device = torch.device("cuda", number)
        self._student: OpenedModel | None = None
        self._teacher: OpenedModel | None = None
        self._kernel = False  # reads the teacher's logits
        join_group(self._device, number, ranks, meeting)

    def close(self) -> None:
        """Free the memory of both models."""
        for opened in (self._student, self._teacher):
            if opened is not None:
                opened.model.close()
        self._student = self._teacher = opened = None
        drop_garbage()

    # --- the teacher, and the statistics of both models ---

    def open_teacher(self, job: Job, passes: Passes | None) -> bool:
        """Load the teacher in the forward pass's dtype; returns whether its passes are packed."""
        if self._teacher is not None:  # its memory is freed before the next one takes as much
            self._teacher.model.close()
            self._teacher = None
            drop_garbage()
        self._teacher = self._open("teacher", job, passes)
        self._kernel = by_kernel(job.runtime, job.setup)
        return self._teacher.packed

    def score(self, batches: Sequence[MicroBatch], owner: Owner = "teacher") -> list[TeacherScores]:
        """Statistics of a model at the N response tokens of each micro-batch: (N, K) and (N,)."""
        opened = self._teacher if owner == "teacher" else self._training()
        assert opened is not None, "open_teacher comes first"
        scores: list[TeacherScores] = []
        with torch.no_grad(), opened.model.working(opened.model.eval_mode()):
            for batch in batches:
                scores.append(self._score(opened, owner, batch))
                heartbeat.advance()
        return scores

    def _score(self, opened: OpenedModel, owner: Owner, batch: MicroBatch) -> TeacherScores:
        given = batch.inputs(self._device, opened.packed)
        targets = batch.targets

        def read(hidden: Tensor, head: Tensor) -> TeacherScores:
            def logits(part: Tensor) -> Tensor:
                return opened.logits(part, head)

            return read_model(
                hidden[given.rows, given.columns],
                logits,
                opened.space,
                owner,
                targets.tokens,
                targets.support,
                self._kernel,
            )

        return opened.model.forward(given, read)

    # --- the student ---

    def open_student(self, job: Job, passes: Passes | None) -> bool:
        """Load the student with float32 master weights; returns whether its passes are packed."""
        if self._student is not None:
            self._student.model.close()
            self._student = None
            drop_garbage()
        self._student = self._open("student", job, passes)
        return self._student.packed

    def step(
        self, batches: Sequence[MicroBatch], total: int, goal: Objective, rate: float
    ) -> tuple[dict[str, float], list[float]]:
        """Make one update on the mean over all ranks' `total` tokens.

        Returns this rank's sums and `grad_norm`, and the gaps that it read (`Readings`).
        """
        student = self._training()
        gaps: list[float] = []

        def loss(batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
            summed, measured = self._loss(student, batch, goal)
            gaps.extend(measured.gaps)
            heartbeat.advance()
            return summed / total, {"loss": float(summed.detach()), **measured.sums}

        for group in student.model.optimizer.param_groups:
            group["lr"] = rate
        return student.model.update(list(batches), loss), gaps

    def _loss(
        self, student: OpenedModel, batch: MicroBatch, goal: Objective
    ) -> tuple[Tensor, Readings]:
        given = batch.inputs(self._device, student.packed)
        targets = batch.targets.to(self._device)

        def read(hidden: Tensor, head: Tensor) -> tuple[Tensor, Readings]:
            predicting = hidden[given.rows, given.columns]
            summed = summed_objective(predicting, head, targets, goal, student.space)
            measured = measure(predicting.detach(), head.detach(), targets, student.space)
            return summed, measured

        return student.model.forward(given, read)

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p of each id but the first given its predecessors, by the student in training."""
        student = self._training()
        row = torch.tensor([list(ids)], device=self._device)

        def read(hidden: Tensor, head: Tensor) -> list[float]:
            log_p = student.space.student_log_prob(student.logits(hidden[0, :-1], head))
            return log_p.gather(-1, row[0, 1:, None])[:, 0].tolist()

        with torch.no_grad(), student.model.working(student.model.eval_mode()):
            return student.model.forward(padded([tuple(ids)], [[]], self._device), read)

    # --- weights ---

    def weights(self) -> dict[str, Tensor]:
        """This rank's share of whole tensors, by Hugging Face name, in the forward dtype, on CPU.

        All ranks gather the tensors one after the other, and each tensor stays with its owner: no
        process holds the whole model.
        """
        share: dict[str, Tensor] = {}
        owners = self._owners()
        for name, parameter in self._training().model.module.named_parameters():
            rows = parameter.detach().to(self._device)  # it may lie in host memory
            rows = rows.to(self._training().dtype)  # before gathering: half the bytes to send
            whole = rows.full_tensor()  # pyright: ignore[reportAttributeAccessIssue] — a DTensor's
            if owners[name] == self._number:
                share[name] = whole.to("cpu", copy=True)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # of gathered tensors: another role may use this GPU next
        return share

    def hold_weights(self) -> tuple[int, int]:
        """Put `weights` into memory that other processes can map; returns process id, descriptor.

        The kernel frees the memory once both processes have closed it, even if one is killed.
        """
        descriptor = os.memfd_create("weights")
        with open(descriptor, "wb", closefd=False) as memory:
            memory.write(serialized(self.weights()))
        return os.getpid(), descriptor

    def let_go(self, descriptor: int) -> None:
        """Close the memory of `hold_weights`."""
        os.close(descriptor)

    def export(self, folder: str) -> dict[str, str]:
        """Write this rank's part of the model in Hugging Face layout, in the forward pass's dtype.

        Returns the digests of the part's tensors by name.
        """
        target = Path(folder)
        weights = self.weights()
        if weights:
            save_file(weights, target / self._part(self._number), metadata={"format": "pt"})
        if self._number == 0:
            model = self._training().model.module
            model.config.dtype = "float32"  # of the master weights, as `save_pretrained` writes it
            model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
            model.config.save_pretrained(target)
            model.generation_config.save_pretrained(target)
            if self._ranks > 1:
                self._write_index(target)
        return digests_of(weights.items())

    def _write_index(self, target: Path) -> None:
        bytes_each = torch.empty((), dtype=self._training().dtype).element_size()
        size = sum(p.numel() for p in self._training().model.module.parameters()) * bytes_each
        where = {name: self._part(owner) for name, owner in sorted(self._owners().items())}
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (target / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2) + "\n", encoding="utf-8"
        )

    def _part(self, rank: int) -> str:
        if self._ranks == 1:
            return "model.safetensors"
        return f"model-{rank + 1:05d}-of-{self._ranks:05d}.safetensors"

    def _owners(self) -> dict[str, int]:
        """Assign each whole tensor to the rank with the fewest values so far."""
        owners: dict[str, int] = {}
        held = [0] * self._ranks
        # Every rank computes the same owners, since all see the same names in the same order.
        for name, parameter in self._training().model.module.named_parameters():
            owners[name] = held.index(min(held))
            held[owners[name]] += parameter.numel()
        return owners

    # --- the learner's state ---

    def save(self, folder: str) -> None:
        """Write this rank's rows of master weights and AdamW moments."""
        student = self._training()
        path = rank_file(Path(folder), self._number, self._ranks)
        path.parent.mkdir(exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for name, parameter in student.model.module.named_parameters():
            tensors[f"weight/{name}"] = _rows_here(parameter)
            state = student.model.optimizer.state[parameter]
            if state:  # none before the first update
                tensors[f"step/{name}"] = state["step"].cpu()
                for key in MOMENTS:
                    tensors[f"{key}/{name}"] = _rows_here(state[key])
        save_file(tensors, path)

    def restore(self, folder: str) -> None:
        """Continue from the state that `save` wrote, on the same or another number of ranks."""
        student = self._training()
        saved = SavedRows(Path(folder))
        with torch.no_grad():
            for name, parameter in student.model.module.named_parameters():
                self._restore_rows(parameter, saved, f"weight/{name}")
                state: dict[str, Any] = {}
                if f"step/{name}" in saved:  # none in a learner saved before its first update
                    # A fused optimizer keeps its step count beside the parameter.
                    state["step"] = saved.value(f"step/{name}").to(parameter.device)
                    for key in MOMENTS:
                        state[key] = torch.zeros_like(parameter)
                        self._restore_rows(state[key], saved, f"{key}/{name}")
                student.model.optimizer.state[parameter] = state
        saved.close()

    def _restore_rows(self, tensor: Any, saved: SavedRows, key: str) -> None:
        first, end = own_rows(tensor.shape[0], self._number, self._ranks)
        tensor.to_local().copy_(saved.rows(key, first, end))

    # --- opening ---

    def _training(self) -> OpenedModel:
        assert self._student is not None, "open_student comes first"
        return self._student

    def _open(self, owner: Owner, job: Job, passes: Passes | None) -> OpenedModel:
        """Load a model over all ranks; `passes` default to `Passes.on` this rank's device."""
        # Imported here: the process that calls several ranks needs no verl.
        from orchestrator.engines.verl.library import ShardedModel

        setup = job.setup
        trains = owner == "student"
        folder = job.folder(owner)
        forward = torch.float32 if setup.engine.dtype == "float32" else torch.bfloat16
        held = torch.float32 if trains else forward
        optimizer = setup.training.optimizer if trains else None
        passes = passes or Passes.on(self._device, forward, job.runtime.checkpointing)
        attention = attention_for(self._device)
        # On the CPU first: FSDP puts a rank's own rows on its device.
        causal = checked_model(setup, folder, owner, held, torch.device("cpu"), attention)
        if passes.lean:
            fuse_norms(causal.model)  # FSDP casts everything else to the dtype of the passes
        # A teacher stays on the device: it has only its weights, and scores at each step.
        offload = job.takes_turns and trains
        model = ShardedModel(
            causal.model, folder.path, forward, optimizer, passes.checkpointing, offload
        )
        return OpenedModel(model, causal.space, forward, passes.packed, causal.precise_head)


def _rows_here(tensor: Any) -> Tensor:
    return tensor.detach().to_local().cpu().contiguous()


def join_group(device: torch.device, number: int, ranks: int, meeting: str | None) -> None:
    """Make this process a member of its group; a single process keeps its first group.

    Ranks meet in a file and talk over the loopback device: all of them run on one machine.
    """
    if dist.is_initialized():
        assert ranks == dist.get_world_size() == 1, "a process is in one group for its whole life"
        return
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    alone, meets = dist.HashStore, dist.FileStore  # pyright: ignore[reportPrivateImportUsage]
    store = alone() if meeting is None else meets(f"{meeting}/store", ranks)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=ranks)


# --- A learner's state as files of rows: each rank writes its own, and any number of ranks reads them ---
#
# FSDP2 cuts every parameter along its first dimension into one block of ⌈rows ÷ ranks⌉ rows per rank;
# the last blocks may be shorter or empty. Saving therefore gathers nothing, and shapes alone give the
# location of rows.


REMEDY = "remove the unit's folder; trb submit trains the unit again"


def rank_file(folder: Path, rank: int, ranks: int) -> Path:
    """The file of a rank's part of the learner's state in a checkpoint."""
    return folder / LEARNER_FOLDER / f"rank_{rank + 1:05d}_of_{ranks:05d}.safetensors"


def own_rows(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The range [first, end) of a tensor's `rows` rows that `rank` of `ranks` holds."""
    block = -(-rows // ranks)
    return min(rank * block, rows), min((rank + 1) * block, rows)


class SavedRows:
    """The rows that all ranks of an earlier process wrote."""

    def __init__(self, folder: Path):
        """Open the files of a checkpoint. Raises Damaged if one is missing."""
        self._folder = folder / LEARNER_FOLDER
        names = sorted(path.name for path in self._folder.glob("rank_*_of_*.safetensors"))
        ranks = len(names)
        if not ranks or names != [rank_file(folder, rank, ranks).name for rank in range(ranks)]:
            raise damaged(self._folder, "doesn't hold a file of each rank", REMEDY)
        self._stack = ExitStack()
        self._files: list[Any] = []
        for name in names:
            file = safe_open(self._folder / name, framework="pt")
            self._files.append(self._stack.enter_context(file))
        self._keys = set(self._files[0].keys())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def value(self, key: str) -> Tensor:
        """A tensor that is the same in all ranks' files."""
        return self._files[0].get_tensor(key)

    def rows(self, key: str, start: int, end: int) -> Tensor:
        """Rows [start, end) of a tensor from the ranks' files."""
        parts: list[Tensor] = []
        offset = 0  # of the file's first row in the whole tensor
        for file in self._files:
            part = file.get_slice(key)
            rows = part.get_shape()[0]
            first = max(start, offset)
            last = min(end, offset + rows)
            if first < last:
                parts.append(part[first - offset : last - offset])
            offset += rows
        if sum(map(len, parts)) != end - start:
            raise damaged(self._folder, f"has {offset} rows of {key}, not {end} or more", REMEDY)
        return torch.cat(parts) if parts else self._files[0].get_tensor(key)[:0]

    def close(self) -> None:
        """Close the files."""
        self._stack.close()
