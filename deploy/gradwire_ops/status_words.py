"""The numbers of a status as people read them, here and on the page (gradwire_server.page)."""

from __future__ import annotations

_RATES = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s")


def format_rate(bytes_per_second: float) -> str:
    """Three digits, in bits a second, as links are sold; nothing where it is not known."""
    number, unit = bytes_per_second * 8, 0
    if number <= 0:
        return ""
    while number >= 999.5 and unit < len(_RATES) - 1:
        number, unit = number / 1000, unit + 1
    return f"{_digits(number)} {_RATES[unit]}"


def format_time(seconds: float) -> str:
    """Three digits; nothing where it is not known."""
    if seconds <= 0:
        return ""
    if seconds < 0.9995e-3:
        return f"{_digits(seconds * 1e6)} \u00b5s"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def printable(text: str) -> str:
    """Without what would steer a terminal: names come from other machines."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _digits(number: float) -> str:
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f}"
