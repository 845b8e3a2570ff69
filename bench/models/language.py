"""Language models of transformers, at the sizes that the figures of record use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def gpt2(layers: int, width: int, heads: int) -> nn.Module:
    """GPT-2: Radford et al. 2019, dropout 0.1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False))


def llama(layers: int, width: int, inner: int, heads: int, groups: int) -> nn.Module:
    """Llama: Touvron et al. 2023."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            intermediate_size=inner,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            max_position_embeddings=4096,
            use_cache=False,
        )
    )


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
