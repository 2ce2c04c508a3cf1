"""Another MoE backend is faster: FlashInfer's TRT-LLM kernels.

"Tried next" in the campaign, outcome not on record. The simulated node assumes that its kernels refuse SM120.
"""

from __future__ import annotations

import pytest


@pytest.mark.sglang(server="moe-trtllm", expect="blocked", reason="its kernels are built for SM100 and SM103")
def test_moe_trtllm_boots(sglang_server): ...
