"""FLOPs of a step and of a device: what MFU is made of."""

from __future__ import annotations

# Dense bf16 FLOP/s without sparsity, from the vendors' data sheets. Longer names before shorter ones that they contain.
_PEAK_BF16 = {
    "B300": 2.25e15,
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10G": 70e12,
    "L4": 121e12,
}


def peak_flops(device: str, precision: str) -> float | None:
    """Peak FLOP/s of one device by the name that its driver gives it; None where it is not known."""
    if precision != "bf16":
        return None
    return next((peak for name, peak in _PEAK_BF16.items() if name in device), None)


def flops_per_token(multiplied: int, layers: int, hidden: int, sequence_length: int) -> float:
    """FLOPs of forward and backward for one token of a transformer.

    6 for each parameter that is multiplied with (2 forward, 4 backward), 12 x layers x hidden x sequence length for
    attention, causal or not; recomputation is not counted (Chowdhery et al., PaLM, 2022, appendix B).

    Args:
        multiplied: parameters without an input embedding that is only looked up.
    """
    return 6.0 * multiplied + 12.0 * layers * hidden * sequence_length
