import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muro.engines.openvino.compression import quantize_int8


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_int8_is_off_by_half_a_step_at_most(seed: int, scale: float) -> None:
    weight = (np.random.default_rng(seed).normal(0, scale, (7, 13))).astype(np.float32)
    weight[3] = 0
    values, scales = quantize_int8(weight)
    assert values.dtype == np.int8 and scales.shape == (7, 1)
    assert not values[3].any() and np.isfinite(scales).all()
    assert (np.abs(values * scales - weight) <= scales * 0.5001).all()
