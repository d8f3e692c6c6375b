"""Which attention kernels an engine is started with. SGLang chooses by the GPU alone, and not always right for us.

SGLang 0.5.20 takes (`get_default_attn_backend` in its `arg_groups/model_override_base.py`):

| GPU | kernels | dtypes | tokens of a cache's page |
|---|---|---|---|
| sm90: H100, H200 | fa3 | 16 bit | 1 |
| sm100: B200 | trtllm_mha | 16 bit | 64, whatever it was told |
| others: A100 (sm80), L40S (sm89) | flashinfer | 16 bit | 1 |

None of them takes float32; Triton's do. Blending writes the cache slot by slot and was never run with pages.

In float32 Triton's prefill asks for 128 KiB of shared memory on an H100 and 192 on an A100, which has 163, where heads
are 128 wide. So full-size pairs are in bfloat16 there; the heads of embedded pairs are narrow and fit everywhere.
"""

from __future__ import annotations

from orchestrator.config import AttentionName
from orchestrator.errors import refuse

Capability = tuple[int, int]  # of a GPU: (9, 0) is sm90
KEY = "runtime.attention_backend"


def attention_backend(
    asked: AttentionName | None, dtype: str, capability: Capability | None, blends: bool = False
) -> str | None:
    """The kernels by SGLang's name, or None where SGLang chooses well. Raises UserError for what cannot work.

    Without a GPU (`capability` None) they are torch's, or Triton's in its interpreter, which is about 40 times slower:
    the code of a GPU without its hardware.
    """
    if capability is None:
        if asked not in (None, "triton"):
            raise refuse(KEY, asked, "triton, or nothing, on a machine without a GPU")
        return asked or "torch_native"
    if dtype == "float32":
        if asked not in (None, "triton"):
            raise refuse(KEY, asked, "triton with engine.dtype=float32, which other kernels do not take")
        return "triton"
    if asked is None and blends and capability[0] == 10:
        return "triton"
    return asked


def environment(attention: str | None, dtype: str, gpu: bool) -> dict[str, str]:
    """What Triton reads from the environment of an engine's processes when it is imported."""
    variables: dict[str, str] = {}
    if dtype == "float32":
        variables["TRITON_F32_DEFAULT"] = "ieee"  # else a GPU rounds the factors of its products to TF32's 10 bits
    if attention == "triton" and not gpu:
        variables["TRITON_INTERPRET"] = "1"
    return variables
