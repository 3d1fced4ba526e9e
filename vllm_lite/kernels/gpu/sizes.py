"""Triton's helpers for sizes, for the host: its own take some ten microseconds a call there."""

from __future__ import annotations


def cdiv(number: int, divisor: int) -> int:
    """`number` / `divisor`, rounded up."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()
