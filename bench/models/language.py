"""Language models of transformers, at the sizes that the figures of record use.

Under torch.compile's front end transformers builds a mask even where every sequence is whole, and attention with a mask
is another, slower kernel than the causal one of plain eager runs. `UNMASKED` is its own attention with no mask made for
it, so that both run the same kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

UNMASKED = "sdpa_without_mask"


def _causal(config: Any) -> Any:
    """The config with attention that is causal without a mask."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    config._attn_implementation = UNMASKED
    return config


def gpt2(layers: int, width: int, heads: int) -> nn.Module:
    """GPT-2: Radford et al. 2019, dropout 0.1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False)
    model = GPT2LMHeadModel(_causal(config))
    model.loss_type = "ForCausalLM"  # Left to guess it, transformers logs, and torch.compile's front end breaks there.
    return model


def llama(layers: int, width: int, inner: int, heads: int, groups: int) -> nn.Module:
    """Llama: Touvron et al. 2023."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=4096,
        use_cache=False,
    )
    model = LlamaForCausalLM(_causal(config))
    model.loss_type = "ForCausalLM"
    return model


def t5_large() -> nn.Module:
    """T5: Raffel et al. 2020, dropout 0.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(d_model=1024, d_ff=4096, num_layers=24, num_heads=16, use_cache=False, decoder_start_token_id=0)
    )


def tokens(vocabulary: int, batch: int, length: int) -> dict[str, Any]:
    """Random text to be predicted from itself."""
    ids = torch.randint(vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}
