"""The models of one process, loaded when first needed and shared by its roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import AdamW

from orchestrator.config import Setup
from orchestrator.engines import memory
from orchestrator.engines.budget import Situation, longest_round
from orchestrator.engines.common.causal import CausalModel, best_device, load_model
from orchestrator.engines.device import granted
from orchestrator.engines.interface import Job, ModelFolder, Owner, WeightsRef
from orchestrator.errors import UserError
from orchestrator.liveness import heartbeat
from orchestrator.policy.spec import Behavior, arithmetic_cost, draft_length
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import verify_files


class ModelStore:
    """Student (in the weights of the last `load_student`) and teacher of one process."""

    def __init__(self, job: Job):
        # Trials run beside each other, and the order of a sum must not depend on a machine's cores.
        torch.set_num_threads(1)
        self.job = job
        self.device = best_device()
        self._share = job.runtime.placement.gpu_share
        if self.device.type == "cuda" and self._share < 1:  # the rest belongs to another trial
            torch.cuda.set_per_process_memory_fraction(self._share, self.device)
        self.dtype = torch.float32 if job.setup.engine.dtype == "float32" else torch.bfloat16
        self._student: CausalModel | None = None
        self._teacher: CausalModel | None = None
        # Whether this engine's teacher also scores rollouts, and thus has work in every step.
        self._scores = job.setup.engine.trainer == "torch"

    @property
    def student(self) -> CausalModel:
        """The student that generates; untrained until weights are loaded."""
        if self._student is None:
            self._student = self.open(self.job.initial, self.job.stops_as, self.dtype)
        return self._student

    @property
    def teacher(self) -> CausalModel:
        if self._teacher is None:
            assert self.job.teacher is not None, "this job was opened without a teacher"
            self._teacher = self.open(self.job.teacher, "teacher", self.dtype)
        return self._teacher

    def open(self, folder: ModelFolder, owner: Owner, dtype: torch.dtype) -> CausalModel:
        """A fresh copy of a model on this store's device; see `checked_model`."""
        with heartbeat.loading():
            opened = checked_model(self.job.setup, folder, owner, dtype, self.device)
            _first_pass(opened)
        return opened

    def load_student(self, weights: WeightsRef) -> None:
        """Put new weights into the generating student."""
        parameters = dict(self.student.model.named_parameters())
        tensors = _tensors(weights)
        if isinstance(weights.place, Path) and not parameters.keys() <= tensors.keys():
            # Files name some parameters otherwise, such as experts one by one.
            opened = load_model(str(weights.place), self.dtype, torch.device("cpu"))
            tensors = dict(opened.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])

    def drop_student(self) -> None:
        """Release the generating student's memory; its next use opens it in its initial weights."""
        self._student = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def drop_idle_teacher(self) -> None:
        """Release the teacher's memory if another engine scores; decoding opens it again."""
        if not self._scores and self._teacher is not None:
            self._teacher = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def drop_all(self) -> None:
        """Release the memory of both models."""
        self._teacher = None
        self.drop_student()

    def decode_batch(self, situation: Situation, max_tokens: int) -> int:
        """Sequences decoded at once on this device: the configured number, else one that fits."""
        if self.job.runtime.rollout_batch is not None:
            return self.job.runtime.rollout_batch
        there = granted(self.job, situation, max_tokens)
        return memory.CPU_BATCH if there is None else there.requests

    def draft_length(self, behavior: Behavior, rows: int) -> int:
        """γ for `rows` decoded at once: the configured one, else by behavior, models and device."""
        on_gpu = self.device.type == "cuda"
        # Decoding reads all parameters, so the ratio of their numbers is the cost of a pass of the
        # teacher in passes of the student.
        cost_ratio = _parameters(self.teacher) / _parameters(self.student)
        suggested = draft_length(
            behavior.acceptance_guess, cost_ratio, arithmetic_cost(rows, on_gpu)
        )
        drafted = self.job.runtime.draft_length or suggested
        return min(drafted, longest_round(self.job.setup, rows)) if on_gpu else drafted


def checked_model(
    setup: Setup,
    folder: ModelFolder,
    owner: Owner,
    dtype: torch.dtype,
    device: torch.device,
    attention: str | None = None,
) -> CausalModel:
    """A fresh copy of a model, checked against its known files and the setup's vocabulary."""
    verify_files(Path(folder.path), folder.files, folder.remedy)
    model = load_model(folder.path, dtype, device, attention)
    rows = model.config.vocab_size
    if rows < setup.vocabulary.size:
        raise UserError(
            f"{owner} {folder.path}: {rows} vocabulary rows: expected {setup.vocabulary.size} or "
            "more, as the setup declares for student and teacher alike"
        )
    precise = setup.engine.head_dtype == "float32"
    return CausalModel(model, TokenSpace.of(setup), owner, precise)


def _parameters(causal: CausalModel) -> int:
    return sum(parameter.numel() for parameter in causal.model.parameters())


def _tensors(weights: WeightsRef) -> Mapping[str, Tensor]:
    """Tensors by name: from all parts of a model folder, or from the reference itself."""
    if not isinstance(weights.place, Path):
        return weights.place
    tensors: dict[str, Tensor] = {}
    for file in sorted(weights.place.glob("model*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _first_pass(causal: CausalModel) -> None:
    """Run one token through the model, so that libraries' first-call set-up counts as loading."""
    token = torch.zeros(1, 1, dtype=torch.long, device=causal.device)
    with torch.no_grad():
        causal.head(causal.hidden(token, torch.ones_like(token)))


# --- moves a learner's weights and AdamW moments to host memory while other roles use the GPU ---


MOMENTS = ("exp_avg", "exp_avg_sq")
# PyTorch rounds each page-locked buffer up to a power of two (`CachingHostAllocator.h` of 2.13):
# one buffer per tensor would take a third more than the tensors. Tensors share buffers of this size
# instead, and only the last buffer is not full.
BUFFER_BYTES = 2**31
ALIGNMENT = 256  # of a tensor in its buffer, bytes


class Offload:
    """Moves the tensors of a learner between its device, where they start, and buffers of the host.

    Parameters and the optimizer stay the same objects. For a learner on the GPU the buffers are
    page-locked: moving a student of 1.7 billion parameters (20 GB) takes about half a second each
    way over PCIe 5. Buffers are kept once made.
    """

    def __init__(self, parameters: Mapping[str, Tensor], adamw: AdamW):
        self._parameters = parameters
        self._adamw = adamw
        self._device = next(iter(parameters.values())).device
        # `weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` or `copy/NAME` → its part of a buffer.
        self._places: dict[str, Tensor] = {}

    def to_host(self) -> None:
        """Drop the gradients, and move weights and moments to the host."""
        self._adamw.zero_grad(set_to_none=True)
        self._make_places(self._tensors())
        for name, parameter in self._parameters.items():
            parameter.data = self._moved(f"weight/{name}", parameter.data)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = self._moved(f"{key}/{name}", state[key])
        if self._device.type == "cuda":
            # Copies to page-locked memory run beside the host: their sources may be freed only
            # after them, and the allocator gives memory back only when it is asked.
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    def to_device(self) -> None:
        """Move weights and moments to the device."""
        for parameter in self._parameters.values():
            parameter.data = parameter.data.to(self._device, non_blocking=True, copy=True)
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                state[key] = state[key].to(self._device, non_blocking=True, copy=True)

    def copies(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Copies of named weights on the host, in `dtype`, until the next call overwrites them.

        Synchronise the device before reading them.
        """
        tensors: dict[str, Tensor] = {}
        for name, weight in weights:
            tensors[f"copy/{name}"] = weight
        self._make_places(tensors, dtype)
        copies: dict[str, Tensor] = {}
        for key, weight in tensors.items():
            copies[key.removeprefix("copy/")] = self._moved(key, weight.to(dtype))
        return copies

    def _moments(self, state: Mapping[str, Tensor]) -> list[str]:
        """The names of existing moments: none before the first update."""
        return [key for key in MOMENTS if key in state]

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and existing moments, by the keys of their places."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"weight/{name}"] = parameter.data
            state = self._adamw.state[parameter]
            for key in self._moments(state):
                tensors[f"{key}/{name}"] = state[key]
        return tensors

    def _make_places(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        """Give tensors that have none their places on the host, in `dtype` or else their own."""
        sizes: dict[str, int] = {}
        for key, tensor in tensors.items():
            if key not in self._places:
                sizes[key] = tensor.numel() * (dtype or tensor.dtype).itemsize
        for shared in buffers(sizes):
            end = sum(size for _, size in shared)
            buffer = torch.empty(end, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            start = 0
            for key, size in shared:
                tensor = tensors[key]
                place = buffer[start : start + sizes[key]].view(dtype or tensor.dtype)
                self._places[key] = place.view(tensor.shape)
                start += size

    def _moved(self, key: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to its place and return that; synchronise the device before reading it."""
        return self._places[key].copy_(tensor, non_blocking=True)


def buffers(sizes: Mapping[str, int]) -> list[list[tuple[str, int]]]:
    """Assign tensors and their aligned bytes to buffers: largest first, into the first with room.

    A buffer holds at most BUFFER_BYTES, or a single larger tensor.
    """
    shared: list[list[tuple[str, int]]] = []
    room: list[int] = []
    for key, size in sorted(sizes.items(), key=lambda item: -item[1]):
        aligned = -(-size // ALIGNMENT) * ALIGNMENT  # rounded up
        place = next((i for i, free in enumerate(room) if free >= aligned), len(shared))
        if place == len(shared):
            shared.append([])
            room.append(max(BUFFER_BYTES, aligned))
        shared[place].append((key, aligned))
        room[place] -= aligned
    return shared
