"""Language models: three from transformers, loss inside, and a recurrent one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.case import Case, classes


def _inside(output: Any) -> Tensor:
    return output.loss


def _tokens(batch: int = 8, length: int = 32, vocabulary: int = 256) -> Tensor:
    return torch.randint(vocabulary, (batch, length))


def gpt2() -> Case:
    """Dropout on, input and output embeddings tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=64,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    tokens = _tokens()
    return Case(
        GPT2LMHeadModel(config).train(), (), {"input_ids": tokens, "labels": tokens}, loss=_inside, loss_inside=True
    )


def llama() -> Case:
    """Rotary positions, grouped queries, gated perceptron."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
        attn_implementation="sdpa",
    )
    tokens = _tokens()
    return Case(
        LlamaForCausalLM(config).train(), (), {"input_ids": tokens, "labels": tokens}, loss=_inside, loss_inside=True
    )


def t5() -> Case:
    """Encoder and decoder with relative positions and dropout."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=256,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=3,
        num_heads=4,
        dropout_rate=0.1,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return Case(
        T5ForConditionalGeneration(config).train(),
        (),
        {"input_ids": _tokens(), "labels": _tokens(length=24)},
        loss=_inside,
        loss_inside=True,
    )


class Recurrent(nn.Module):
    """An embedding, two LSTM layers with dropout between, and a classifier at every token."""

    def __init__(self, vocabulary: int = 256, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        # On CUDA plain PyTorch itself does not draw the same dropout between layers twice.
        dropout = 0.0 if torch.cuda.is_available() else 0.1
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm() -> Case:
    """nn.LSTM, which is one operator."""
    torch.manual_seed(0)
    return Case(Recurrent(), (_tokens(),), loss=classes(8 * 32, 256))
