"""The numbers that pricing a stack reads, by name: a profile's, and those of its software.

| name | unit | meaning |
|---|---|---|
| ``clock.sustained_ratio`` | 1 | rate of long training over that of a short benchmark |
| ``kernel.tile_intensity``, ``kernel.tile_depth``, ``kernel.wave_rounding``, ``kernel.gap_s``, \
``kernel.attention_ramp`` | | shape of matrix products and attention (`rates`) |
| ``host.sharpness`` | 1 | how sharply the later of host and device decides (`step`) |
| ``host.sync_ratio`` | 1 | more host time for each further tensor-parallel rank |
| ``host.step_launches`` | count | kernels' worth of host time once per step |
| ``kernel.eager_traffic_ratio`` | 1 | bytes of operators run one by one, over fused kernels' |
| ``kernel.unaligned_ratio`` | 1 | attention's products where heads are no multiple of 8 wide |
| ``host.message_launches`` | count | kernels' worth of host time for each pipeline message |
| ``layer.<shape>`` | 1 | measured over predicted time of such layers; absent: 1 |
| ``matmul_slowdown.<precision>`` | 1 | its products, over others of the same dtype; absent: 1 |
| ``attention_slowdown.<kernel>`` | 1 | an older generation of the kernel, over the newest |
| ``stack.compute_ratio`` | 1 | matrix products, over the device's best |
| ``stack.attention_ratio`` | 1 | the attention kernel, over the device's best |
| ``stack.traffic_ratio`` | 1 | bytes of element-wise kernels, over those of fused ones |
| ``stack.host_s`` | s | host time for each kernel launched |
| ``stack.collective_ratio`` | 1 | collectives, over the bare library's |
| ``stack.hidden_fraction`` | 1 | of communication that could hide behind computation, what does |
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.cost_models.stacks.rates import DeviceRates
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import InputError, SoftwareSpec, TrainingSpec
from shardwright.specs.training import DTYPE_BYTES, DType

STACK_PARAMETERS = (
    "stack.compute_ratio", "stack.attention_ratio", "stack.traffic_ratio", "stack.host_s",
    "stack.collective_ratio", "stack.hidden_fraction",
)  # fmt: skip
"""At most six numbers describe a software stack."""


def device_rates(
    profile: HardwareProfile,
    training: TrainingSpec,
    software: SoftwareSpec,
    parameters: Mapping[str, float],
) -> DeviceRates:
    """The rates of the cluster's slowest accelerator under a training precision.

    Raises:
        InputError: the accelerator has no known rate in that precision.
    """
    dtypes = training.dtypes
    sustained = parameters["clock.sustained_ratio"]

    def rate(dtype: DType) -> float:
        return min(
            _peak(group.accelerator.peak_flops_per_s, dtype, group.accelerator.name)
            for group in profile.devices.groups
        )

    matmul = rate(dtypes.matmul) * parameters[f"matmul_efficiency.{dtypes.matmul}"] * sustained
    matmul /= parameters.get(f"matmul_slowdown.{training.precision}", 1.0)
    compute_peak = rate(dtypes.parameter)
    efficiency = parameters.get(f"matmul_efficiency.{dtypes.parameter}", 0.0)
    bandwidth = min(g.accelerator.memory_bandwidth_bytes_per_s for g in profile.devices.groups)
    return DeviceRates(
        matmul_flops_per_s=matmul,
        compute_flops_per_s=compute_peak * efficiency * sustained,
        attention_forward_flops_per_s=compute_peak
        * parameters["attention_efficiency.forward"]
        * sustained,
        attention_backward_flops_per_s=compute_peak
        * parameters["attention_efficiency.backward"]
        * sustained,
        memory_bytes_per_s=bandwidth * parameters["memory_bandwidth_efficiency"],
        num_processors=parameters.get("num_sm", 100.0),
        matmul_bytes=DTYPE_BYTES[dtypes.matmul],
        item_bytes=dtypes.parameter_bytes,
        tile_intensity=parameters["kernel.tile_intensity"],
        tile_depth=parameters["kernel.tile_depth"],
        wave_rounding=parameters["kernel.wave_rounding"],
        attention_ramp=parameters["kernel.attention_ramp"],
        gap_s=parameters["kernel.gap_s"],
        unaligned_ratio=parameters["kernel.unaligned_ratio"],
        compute_ratio=parameters["stack.compute_ratio"],
        attention_ratio=parameters["stack.attention_ratio"]
        * parameters.get(f"attention_slowdown.{software.attention_kernel}", 1.0),
        traffic_ratio=parameters["stack.traffic_ratio"] * _eager(software, parameters),
    )


def _eager(software: SoftwareSpec, parameters: Mapping[str, float]) -> float:
    """Element-wise bytes where operators run one by one, over those of fused kernels."""
    if software.fused_kernels or software.compile:
        return 1.0
    return parameters["kernel.eager_traffic_ratio"]


def _peak(peaks: Mapping[DType, float], dtype: DType, name: str) -> float:
    if dtype in peaks:
        return peaks[dtype]
    # A device without bf16 units trains in fp16 on the same ones, and the other way round.
    twin: dict[DType, DType] = {"bf16": "fp16", "fp16": "bf16"}
    if twin.get(dtype) in peaks:
        return peaks[twin[dtype]]
    raise InputError(
        f"{name} has no known rate for {dtype} matrix products",
        why=f"its profile knows {', '.join(peaks) or 'none'}",
        fix="choose one of those precisions",
    )
