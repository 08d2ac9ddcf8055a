"""Operators of torch, by name, in the classes that make up the rules."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ROUNDED_ONCE = words("""
    _to_copy abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone copy copysign div eq equal
    fill floor floor_divide fmod ge gt hardtanh isfinite isinf isnan le leaky_relu lift_fresh logical_and logical_not logical_or
    logical_xor lt masked_fill maximum minimum mul nan_to_num ne neg reciprocal relu remainder round rsub sign sqrt square sub
    threshold trunc where
""")
"""Functions of single numbers with one result in any kernel: exact ones, and those that IEEE 754 says how to round."""

TWO_STEPS = words("add sub rsub mul div reciprocal square")
"""Those of them that round twice where numbers are complex, or have a factor."""

ALONG_ONE = words("_softmax _log_softmax cumsum cumprod logcumsumexp topk sort argsort")
"""Functions along one dimension, whose argument is called ``dim``. Orders are among them: equal numbers change places."""

ALONG_SEVERAL = words("var std linalg_vector_norm norm logsumexp var_mean")
"""Reductions along one dimension or several, which have an argument ``dim`` and one ``keepdim``."""

NORMS = words("native_layer_norm _fused_rms_norm")
"""Norms over the last dimensions with weights, which return their statistics, too."""

REFUSED = words("""
    _cdist_forward _convolution _efficient_attention_forward _flash_attention_forward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_fused_attention_overrideable _scaled_mm _weight_int4pack_mm _weight_int8pack_mm addbmm addmv baddbmm bmm
    convolution cudnn_convolution dot mv native_batch_norm native_group_norm
""")
"""Sums of products, and norms over several tokens, that are computed in another way for other shapes."""

MOVED = words("""
    _local_scalar_dense _to_copy _unique2 _unsafe_view alias_copy all amax amin any arange argmax argmin as_strided
    bincount cat clone constant_pad_nd copy detach embedding empty empty_like empty_strided eye fill flip full
    full_like gather histc index index_add index_copy index_fill index_put index_select isin item lift_fresh
    linspace masked_scatter masked_select max min new_empty new_empty_strided new_full new_ones new_zeros nonzero
    one_hot ones ones_like pixel_shuffle repeat resize roll scalar_tensor scatter searchsorted select_scatter
    slice_scatter stack tril triu unbind_copy unique_dim zero zeros zeros_like
""")
"""Operators that move, choose or make numbers and round none; ``index_add`` adds one number to each place where experts use it."""
