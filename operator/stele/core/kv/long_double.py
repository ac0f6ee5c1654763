"""Numbers as Redis adds them in INCRBYFLOAT on x86-64: binary, with 64 significant bits.

Exact fractions are rounded where the processor rounds, so that all members get the digits that Redis gets.
Numbers are below 2**1024 (Redis: below 2**16384), which bounds the work and the length of a reply.
"""

import re
from fractions import Fraction

TEXT_BYTES_MAX = 512
"""Longest text of a number."""
_MANTISSA_BITS = 64
_DECIMALS = 17
_EXPONENT_MAX = 5000
_BITS_MAX = 1024
_NUMBER = re.compile(rb"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,9}))?")
_INFINITY = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)


def add(left: bytes, right: bytes) -> bytes:
    """Return the sum, with at most 17 decimals and without trailing zeros.

    Raises ValueError when a text is no number, OverflowError when the sum is not finite.
    """
    numbers = [_parsed(left), _parsed(right)]
    if None in numbers:
        raise OverflowError
    total = _rounded(sum(filter(None, numbers), Fraction(0)))
    if abs(total) >= 2**_BITS_MAX:
        raise OverflowError
    return _shown(total)


def _parsed(text: bytes) -> Fraction | None:
    """Return the nearest number of 64 bits; None for an infinite one."""
    if len(text) > TEXT_BYTES_MAX:
        raise ValueError
    if _INFINITY.fullmatch(text):
        return None
    found = _NUMBER.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        raise ValueError
    sign, whole, decimals, exponent = found.groups(b"")
    power = int(exponent or b"0") - len(decimals)
    digits = int(whole + decimals)
    if digits and abs(power) > _EXPONENT_MAX:
        raise ValueError
    number = _rounded(digits * Fraction(10) ** power if digits else Fraction(0))
    if number >= 2**_BITS_MAX:
        raise ValueError
    return -number if sign == b"-" else number


def _rounded(number: Fraction) -> Fraction:
    """Round to 64 significant bits, half to even."""
    top, bottom = abs(number.numerator), number.denominator
    unit = Fraction(2) ** (top.bit_length() - bottom.bit_length() - _MANTISSA_BITS)
    if abs(number) >= unit * 2**_MANTISSA_BITS:
        unit *= 2
    return round(number / unit) * unit


def _shown(number: Fraction) -> bytes:
    digits = f"{round(abs(number) * 10**_DECIMALS):0{_DECIMALS + 1}d}"
    text = f"{digits[:-_DECIMALS]}.{digits[-_DECIMALS:]}".rstrip("0").rstrip(".")
    return (f"-{text}" if number < 0 and text != "0" else text).encode()
