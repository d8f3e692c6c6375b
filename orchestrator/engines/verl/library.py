"""verl's FSDP2 engine with the objective inside the forward pass: the one file that knows verl.

verl's own loss hook receives logits, tokens × vocabulary. Here the sharded model's forward pass
gives hidden states, and ends in a function `read` of them and the LM head, at a point where FSDP
has gathered the head's rows. `engines.common.learning` then computes losses in chunks, and the
logits never exist as a whole.

Taken from verl: loading into FSDP2 (`FSDPEngine._build_model_optimizer`), the order of an update
(`train_batch` with `optimizer_zero_grad` and `optimizer_step`, which clips), and train and eval
mode. Replaced: the model's forward pass, the division into micro-batches, schedules (the trainer
sets the rate before each update) and checkpoints. This file overrides private methods of verl. The
version is therefore pinned, and another one must pass the contract tests first.
"""

from __future__ import annotations

import io
import logging
import os
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any, TypeVar

import torch
from torch import Tensor

from orchestrator.config import Optimizer
from orchestrator.engines.common.causal import logit_scale
from orchestrator.engines.common.passes import Inputs, checkpoint_activations

Result = TypeVar("Result")
# The loss of a micro-batch, and measurements.
LossFunction = Callable[[Any], tuple[Tensor, dict[str, float]]]
Read = Callable[[Tensor, Tensor], Result]  # of hidden states (B, L, H) and the LM head (V, H)


@contextmanager
def _unheard() -> Iterator[None]:
    """Silence verl: it configures the root logger, prints, and warns of engines not installed."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    root.handlers[:] = handlers
    root.setLevel(level)


os.environ.setdefault("VERL_USE_EXTERNAL_PLUGINS", "none")
with _unheard():
    from verl.plugin.platform import platform_manager  # pyright: ignore[reportMissingImports]
    from verl.plugin.platform.platform_cuda import PlatformCUDA  # pyright: ignore[reportMissingImports]


class _Cpu(PlatformCUDA):
    """A platform for verl on CPUs; verl 0.9.1 has none."""

    device_name = property(lambda self: "cpu")  # pyright: ignore[reportIncompatibleMethodOverride]
    device_module = property(lambda self: _NO_DEVICE)  # pyright: ignore[reportIncompatibleMethodOverride]

    def current_device(self) -> Any:
        return torch.device("cpu")


_NO_DEVICE = types.SimpleNamespace(
    memory_allocated=lambda: 0,
    memory_reserved=lambda: 0,
    mem_get_info=lambda: (0, 0),
    empty_cache=lambda: None,
    synchronize=lambda: None,
)

with _unheard():
    if not torch.cuda.is_available():
        platform_manager.set_platform(_Cpu())  # pyright: ignore[reportAbstractUsage]
    from verl.trainer.config import CheckpointConfig  # pyright: ignore[reportMissingImports]
    from verl.workers.config import (  # pyright: ignore[reportMissingImports]
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
    )
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine  # pyright: ignore[reportMissingImports]

PRECISION = {torch.float32: "fp32", torch.bfloat16: "bf16"}


class ShardedModel(FSDPEngine):
    """A model sharded over all ranks of this process's group; with an `optimizer`, in training.

    Takes over `model`, which is whole, on the CPU or the device. Forward passes are in `dtype`;
    gradients are summed over ranks and micro-batches in float32. With `offload`, all its tensors
    lie in host memory outside of train and eval mode.
    """

    optimizer: Any  # verl's: None for a model that is not in training

    def __init__(
        self,
        model: Any,
        folder: str,
        dtype: torch.dtype,
        optimizer: Optimizer | None,
        checkpointing: bool = False,
        offload: bool = False,
    ):
        self._model = model
        precision = {
            "param_dtype": PRECISION[dtype],
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        }
        with _unheard():
            super().__init__(
                model_config=HFModelConfig(
                    path=folder,
                    load_tokenizer=False,
                    use_remove_padding=False,
                    override_config={"attn_implementation": model.config._attn_implementation},
                    enable_gradient_checkpointing=checkpointing,
                ),
                engine_config=FSDPEngineConfig(
                    strategy="fsdp2",
                    mixed_precision=precision,
                    use_torch_compile=False,
                    # Else every rank would hold unsharded float32 gradients between micro-batches.
                    use_no_sync_for_gradient_accumulation=False,
                    param_offload=offload,
                    optimizer_offload=offload,
                ),
                # None for a model that is not in training, which verl does not declare.
                optimizer_config=_optimizer_config(optimizer) if optimizer else None,  # pyright: ignore[reportArgumentType]
                checkpoint_config=CheckpointConfig(),
            )
            self.initialize()
        del self._model

    def initialize(self) -> None:
        """Shard the model, without verl's checkpoint manager: checkpoints are our own."""
        self._build_model_optimizer()
        if self.is_param_offload_enabled:
            self.to("cpu")

    def close(self) -> None:
        """Drop the model. Bound to the modules that hold them, its forward passes make circles."""
        del self.module.get_output_embeddings().forward, self.module.forward
        del self.module, self.optimizer

    @contextmanager
    def working(self, mode: AbstractContextManager[Any]) -> Iterator[None]:
        """Work in `train_mode` or `eval_mode`; then offloaded tensors can be read on the host."""
        with mode:
            yield
        if torch.cuda.is_available():
            # verl does not wait for its copies to the host, and another process may work on this
            # GPU next.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def update(
        self, micro_batches: list[Any], loss: Callable[[Any], tuple[Tensor, dict[str, float]]]
    ) -> dict[str, float]:
        """Make one update on the sum of `loss` over all ranks' micro-batches, equally many each.

        Returns `loss`'s measurements, summed over this rank's micro-batches, and the norm of the
        whole gradient.
        """
        with self.working(self.train_mode()):
            data = {"micro_batches": micro_batches}  # verl passes it on to `forward_backward_batch`
            return self.train_batch(data, loss)["metrics"]  # pyright: ignore[reportArgumentType]

    def forward_backward_batch(
        self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """Accumulate gradients: verl's hook between zeroing them and the optimizer's step."""
        sums: dict[str, float] = {}
        for micro_batch in data["micro_batches"]:
            loss, measured = loss_function(micro_batch)
            (loss * self.get_data_parallel_size()).backward()  # FSDP takes the mean over ranks
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value
        return {"metrics": sums}

    def forward(self, inputs: Inputs, read: Read[Result]) -> Result:
        """Apply `read` to the last hidden states (B, L, H) of ids (B, L) and to the head (V, H).

        Both are in the forward pass's dtype. A collective of all ranks.
        """
        return self.module(inputs.ids, inputs.attention, inputs.packing, read)

    def _build_module(self) -> Any:
        model = self._model
        model.forward = types.MethodType(_forward, model)
        head = model.get_output_embeddings()
        head.forward = types.MethodType(_read_head, head)
        if self.model_config.enable_gradient_checkpointing:
            checkpoint_activations(model)
        return model

    def _build_optimizer(self, module: Any) -> Any:
        return super()._build_optimizer(module) if self.optimizer_config else None

    def _build_lr_scheduler(self, optimizer: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Build none: the trainer sets the rate before each update."""


def _forward(
    self: Any, ids: Tensor, attention: Any, packing: dict[str, Any], read: Read[Result]
) -> Result:
    """Forward pass of the whole model; FSDP has gathered its outer parameters while it runs."""
    outputs = self.base_model(input_ids=ids, attention_mask=attention, use_cache=False, **packing)
    hidden = outputs.last_hidden_state
    scale = logit_scale(self.config)
    return self.get_output_embeddings()(hidden if scale == 1 else hidden * scale, read)


def _read_head(self: Any, hidden: Tensor, read: Read[Result]) -> Result:
    """Forward pass of the LM head, which FSDP shards separately unless tied to the embedding."""
    return read(hidden, self.weight)


def _optimizer_config(optimizer: Optimizer) -> Any:
    return FSDPOptimizerConfig(
        lr=optimizer.lr,
        betas=(optimizer.beta1, optimizer.beta2),
        weight_decay=optimizer.weight_decay,
        clip_grad=optimizer.clip,
        # Fused: in place, as in `engines.torch.trainer`.
        override_optimizer_config={
            "eps": optimizer.eps,
            "fused": torch.cuda.is_available() or None,
        },
    )
