"""Seconds of single operations on one accelerator: a few physical parameters from a profile.

Products run tile by tile. A tile of tm x tn outputs needs (tm + tn) values for tm x tn products, so
small tiles are held up by the caches; tiles fill the processors in waves; each starts with a
prologue worth some depth of k. Of a few tile shapes the fastest counts, as libraries choose it.

    t = waves x tm x tn x 2 (k + k0) / (rate / processors x e(I)) + gap
    e(I) = I / (I + I0) x (I_largest + I0) / I_largest,  I = tm x tn / (tm + tn)

and never less than reading and writing the operands takes. Attention's kernel loses the ramp of its
inner loop: efficiency x seq / (seq + s0). Element-wise work is bytes over bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.cost_models.stacks.operations import FlashAttention, Product, Traffic

_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))

_LARGEST = 256 * 128 / (256 + 128)
"""I of the largest tile, which the best measured rate belongs to."""
_ALIGNED = 8
"""Elements of two bytes in the 16 that tensor cores load at once (NVIDIA, Matrix Multiplication
Background: products are fastest where all sizes are multiples of 16 bytes)."""
_FULL_RAMP = 1 / 3
"""Without a causal mask there are no half-empty blocks: a third of the tokens are lost
(FlashAttention-2 on A100, head dim 64: 132 of 176 TFLOP/s at 512 tokens, causal 88 of 171)."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What one accelerator does, and how well software uses it."""

    matmul_flops_per_s: float
    """Best that large products reach in the precision's matmul dtype."""
    compute_flops_per_s: float
    """The same in the activations' dtype."""
    attention_forward_flops_per_s: float
    attention_backward_flops_per_s: float
    memory_bytes_per_s: float
    num_processors: float
    matmul_bytes: float
    item_bytes: float
    tile_intensity: float
    """I0, in elements."""
    tile_depth: float
    """k0, in elements of k."""
    wave_rounding: float
    """Share of the last wave's idle processors that really idles."""
    attention_ramp: float
    """s0, in tokens."""
    gap_s: float
    """Between kernels on the device."""
    unaligned_ratio: float = 1.0
    """Of the time of attention's products where a head is no multiple of `_ALIGNED` wide."""
    compute_ratio: float = 1.0
    """Of this software's time for products over the device's best."""
    attention_ratio: float = 1.0
    """The same of its attention kernel."""
    traffic_ratio: float = 1.0
    """Of the bytes that this software's element-wise kernels move over those of fused ones."""

    def product(self, op: Product) -> float:
        """A (batched) matrix product."""
        is_narrow = op.width == "matmul"
        rate = self.matmul_flops_per_s if is_narrow else self.compute_flops_per_s
        m, n, k, batch = op.m, op.n, op.k, op.batch
        per_processor = rate / self.num_processors
        i0, q, processors = self.tile_intensity, self.wave_rounding, self.num_processors
        work = 2.0 * (k + self.tile_depth) / per_processor
        normal = _LARGEST / (_LARGEST + i0)
        best = math.inf
        for tm, tn in _TILES:
            tiles = batch * math.ceil(m / tm) * math.ceil(n / tn)
            waves = tiles / processors
            waves = q * math.ceil(waves) + (1.0 - q) * max(waves, 1.0)
            area = tm * tn
            seconds = waves * work * (area + i0 * (tm + tn)) * normal
            if seconds < best:
                best = seconds
        if batch > 1 and not is_narrow and (k % _ALIGNED or n % _ALIGNED):
            best *= self.unaligned_ratio
        item = self.matmul_bytes if is_narrow else self.item_bytes
        moved = batch * ((m * k + k * n) * item + m * n * self.item_bytes)
        return max(best * self.compute_ratio, moved / self.memory_bytes_per_s) + self.gap_s

    def attention(self, op: FlashAttention) -> float:
        """The fused attention kernel."""
        rate = self.attention_backward_flops_per_s if op.backward else (
            self.attention_forward_flops_per_s)  # fmt: skip
        lost = self.attention_ramp * (1.0 if op.visible < 1.0 else _FULL_RAMP)
        ramp = 1.0 + lost / max(op.seq_kv, 1.0)
        return op.flops / rate * ramp * self.attention_ratio + self.gap_s * (
            2 if op.backward else 1
        )

    def traffic(self, op: Traffic) -> float:
        """Element-wise kernels."""
        return op.num_bytes * self.traffic_ratio / self.memory_bytes_per_s + self.gap_s * op.kernels
