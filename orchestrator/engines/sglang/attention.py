"""Chooses an engine's kernels of attention, and those that draw from its logits.

SGLang chooses attention by the GPU alone, not always right for us.

SGLang 0.5.20 takes (`get_default_attn_backend` in its `arg_groups/model_override_base.py`):

| GPU | kernels | dtypes | tokens of a cache's page |
|---|---|---|---|
| sm90: H100, H200 | fa3 | 16 bit | 1 |
| sm100: B200 | trtllm_mha | 16 bit | 64, whatever the setting |
| others: A100 (sm80), L40S (sm89) | flashinfer | 16 bit | 1 |

None of them takes float32; Triton's do. Blending writes the cache slot by slot and was never tried
with larger pages.

In float32 with heads of width 128, Triton's prefill needs 128 KiB of shared memory on an H100, and
192 KiB on an A100, which has 163. Full-size pairs therefore run in bfloat16 there. The narrow heads
of embedded pairs fit everywhere.
"""

from __future__ import annotations

from orchestrator.config import AttentionName, LogitsKernel
from orchestrator.errors import refuse

Capability = tuple[int, int]  # of a GPU: (9, 0) is sm90
KEY = "runtime.attention_backend"
LOGITS_KEY = "runtime.logits_kernel"


def attention_backend(
    asked: AttentionName | None, dtype: str, capability: Capability | None, blends: bool = False
) -> str | None:
    """SGLang's name of the kernels, or None if SGLang chooses well. UserError for invalid choices.

    Without a GPU (`capability` None) the kernels are torch's, or Triton's in its interpreter: the
    GPU's code without the hardware, about 40 times slower.
    """
    if capability is None:
        if asked not in (None, "triton"):
            raise refuse(KEY, asked, "triton, or nothing, on a machine without a GPU")
        return asked or "torch_native"
    if dtype == "float32":
        if asked not in (None, "triton"):
            raise refuse(
                KEY, asked, "triton with engine.dtype=float32, which other kernels do not take"
            )
        return "triton"
    if asked is None and blends and capability[0] == 10:
        return "triton"  # SGLang's choice there has pages of 64 tokens
    return asked


def draws_by_kernel(
    asked: LogitsKernel | None, attention: str | None, capability: Capability | None, shards: int
) -> bool:
    """Whether Triton draws from the logits. UserError for a choice that cannot run.

    Without a GPU Triton's interpreter draws where it also computes attention, if asked. Shards
    agree on a token before they record it, which only torch's operations do.
    """
    if asked != "triton":
        return asked is None and capability is not None and shards == 1
    if shards > 1:
        raise refuse(LOGITS_KEY, asked, "torch, or nothing, where several GPUs sample together")
    if capability is None and attention != "triton":
        raise refuse(LOGITS_KEY, asked, "torch, or nothing, on a machine without a GPU")
    return True


def environment(attention: str | None, dtype: str, gpu: bool) -> dict[str, str]:
    """Environment variables for Triton in an engine's processes, which it reads when imported."""
    variables: dict[str, str] = {}
    if dtype == "float32":
        variables["TRITON_F32_DEFAULT"] = "ieee"  # else a GPU rounds factors to TF32's 10 bits
    if attention == "triton" and not gpu:
        variables["TRITON_INTERPRET"] = "1"
    return variables
