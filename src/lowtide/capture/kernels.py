"""What PyTorch runs on a kind of device, for a step that is captured on tensors without data.

Most operators are traced the same way on every device. A few look at the device first and take another kernel, with
other results and other bytes: attention, batch norm, dropout. A tensor on the meta device gets none of them there;
these functions choose as PyTorch's own code does for a tensor of the kind. Recurrent networks are left as the meta
device has them: cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lowtide.capture.gru import gru_on_cpu
from lowtide.capture.recurrent import RECURRENT

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def attention_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention in half precision without a mask, the memory-efficient kernel else, plain products where neither
    takes the sizes.
    """
    width = query.shape[-1]
    dense = query.dim() == key.dim() == value.dim() == 4 and width == key.shape[-1] == value.shape[-1]
    cuda = torch.backends.cuda
    if dense and attn_mask is None and query.dtype in _HALF and width <= 256 and cuda.flash_sdp_enabled():
        scale = width**-0.5 if scale is None else scale
        query, key, value = (_padded(x) for x in (query, key, value))
        found = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return found[..., :width]
    grouped = query.shape[-3] != key.shape[-3]
    aligned = width % (8 if query.dtype in _HALF else 4) == 0 and query.dtype is not torch.float64
    if dense and aligned and not grouped and cuda.mem_efficient_sdp_enabled():
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, _bias(attn_mask, query, key), True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _padded(x: Tensor) -> Tensor:
    """FlashAttention takes heads whose width is a multiple of 8."""
    missing = -x.shape[-1] % 8
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as something to add to the scores, of their shape."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = _additive(mask, query)
    return mask.expand(*query.shape[:2], query.shape[2], key.shape[2])


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -torch.inf)


def batch_norm_on_cuda(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """cuDNN's kernel for images in single precision, PyTorch's own else."""
    whole = weight is not None and bias is not None and (running_mean is not None or training)
    if whole and cudnn_enabled and input.dim() >= 3 and _cudnn_takes(input, weight):
        return aten.cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _cudnn_takes(input: Tensor, weight: Tensor) -> bool:
    if torch.bfloat16 in (input.dtype, weight.dtype):
        return False
    return input.dtype is not torch.float16 or weight.dtype is torch.float32


def dropout_on_cuda(input: Tensor, p: float, train: bool) -> Tensor:
    """One kernel that draws the mask and applies it."""
    if not train or p == 0:
        return input
    return aten.native_dropout(input, p, train)[0] if p < 1 else input * 0


def attention_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention for the CPU, which takes no dropout and no mask that wants a gradient; plain products else."""
    dense = query.dim() == key.dim() == value.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1]
    plain_mask = attn_mask is None or not (attn_mask.requires_grad or attn_mask.dim() == 3)
    if dense and dropout_p == 0 and plain_mask and query.shape[1] == key.shape[1]:
        bias = attn_mask if attn_mask is None or attn_mask.dtype is not torch.bool else _additive(attn_mask, query)
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def for_tensors(tensors: Iterable[Any], kind: str = "cpu") -> Mapping[Any, Callable[..., Any]]:
    """What to trace with where these are the inputs; `kind` is the device that is meant where these are elsewhere."""
    kinds = {tensor.device.type for tensor in tensors if isinstance(tensor, Tensor)}
    elsewhere = "meta" in kinds or (kind == "cuda" and "cuda" not in kinds)
    return KERNELS[kind] if elsewhere else RECURRENT if "cuda" in kinds else ON_CPU


ON_CPU: Mapping[Any, Callable[..., Any]] = {aten.gru.input: gru_on_cpu}
KERNELS: Mapping[str, Mapping[Any, Callable[..., Any]]] = {
    "cuda": {
        aten.scaled_dot_product_attention.default: attention_on_cuda,
        aten.batch_norm.default: batch_norm_on_cuda,
        aten.dropout.default: dropout_on_cuda,
    },
    "cpu": {aten.scaled_dot_product_attention.default: attention_on_cpu, **ON_CPU},
}
