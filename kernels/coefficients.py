"""Writes src/coefficients.h: the polynomials of the kernels, from fifty digits.

    python coefficients.py > src/coefficients.h

Each interpolates a function at the Chebyshev points of its interval, which is within a small factor of the best
polynomial of that degree. The comment behind a table is its largest relative error before rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

mp.dps = 60
Function = Callable[[Any], Any]

# The largest squared angle to the nearer edge of a band, (pi/4)^2, with room for the rounding of its constants.
QUARTER = (mp.pi / 4) ** 2 * (1 + mpf(10) ** -4)
HALF_LOG_2 = mp.log(2) / 2 * (1 + mpf(10) ** -4)
LARGEST_S = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * (1 + mpf(10) ** -4)

# name: what it is in the header's words, the function, its interval, and the number of coefficients in both dtypes.
TABLES: dict[str, tuple[str, Function, tuple[Any, Any], int, int]] = {
    "LOG_COS": ("log(cos(r)^2) / t, t = r^2", lambda t: mp.log(mp.cos(mp.sqrt(t)) ** 2) / t, (0, QUARTER), 7, 15),
    "LOG_SINC": (
        "log((sin(r) / r)^2) / t, t = r^2",
        lambda t: mp.log((mp.sin(mp.sqrt(t)) / mp.sqrt(t)) ** 2) / t,
        (0, QUARTER),
        4,
        10,
    ),
    "TAN": ("tan(r) / r in t = r^2", lambda t: mp.tan(mp.sqrt(t)) / mp.sqrt(t), (0, QUARTER), 7, 16),
    "SIN": ("sin(r)^2 / t, t = r^2", lambda t: mp.sin(mp.sqrt(t)) ** 2 / t, (0, QUARTER), 5, 10),
    "EXP": (
        "(exp(f) - 1 - f) / f^2",
        lambda f: (mp.exp(f) - 1 - f) / f**2,
        (-HALF_LOG_2, HALF_LOG_2 * (1 + mpf(10) ** -3)),
        5,
        11,
    ),
    "LOG1P": ("log(1 + e) / e", lambda e: mp.log1p(e) / e, (0, 1), 9, 0),
    "LOG": (
        "log(1 + f) / f, 1 + f in sqrt(1/2) .. sqrt(2)",
        lambda f: mp.log1p(f) / f,
        (mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1),
        9,
        0,
    ),
    "ATANH_SMALL": (
        "(2 atanh(s) / s - 2) / s^2, up to s = (sqrt(2) - 1) / (sqrt(2) + 1)",
        lambda q: (2 * mp.atanh(mp.sqrt(q)) / mp.sqrt(q) - 2) / q,
        (0, LARGEST_S**2),
        0,
        8,
    ),
    "ATANH": (
        "(2 atanh(s) / s - 2) / s^2, up to s = 1/3",
        lambda q: (2 * mp.atanh(mp.sqrt(q)) / mp.sqrt(q) - 2) / q,
        (0, mpf(1) / 9),
        0,
        12,
    ),
}


def interpolate(function: Function, interval: tuple[Any, Any], size: int) -> list[Any]:
    """The coefficients, lowest first, of the polynomial through the function's values at Chebyshev points."""
    low, high = mpf(interval[0]), mpf(interval[1])
    points = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * size)) for k in range(size)]
    powers = mp.matrix(size, size)
    for row, point in enumerate(points):
        for column in range(size):
            powers[row, column] = point**column
    return list(mp.lu_solve(powers, mp.matrix([function(point) for point in points])))


def worst(function: Function, interval: tuple[Any, Any], coefficients: list[Any]) -> Any:
    low, high = mpf(interval[0]), mpf(interval[1])
    points = [low + (high - low) * (mpf(k) + mpf(1) / 3) / 500 for k in range(500)]
    return max(abs(mp.polyval(coefficients[::-1], point) / function(point) - 1) for point in points)


def table(name: str, dtype: str, size: int, function: Function, interval: tuple[Any, Any]) -> str:
    coefficients = interpolate(function, interval, size)
    digits, suffix = (10, "f") if dtype == "float" else (18, "")
    numbers = ", ".join(mp.nstr(c, digits, min_fixed=0, max_fixed=0) + suffix for c in coefficients)
    error = mp.nstr(worst(function, interval, coefficients), 2)
    return f"constexpr {dtype} {name}_{dtype.upper()}[] = {{{numbers}}};  // {error}"


def main() -> None:
    print("// Made by coefficients.py: polynomials, lowest coefficient first, and their relative errors.")
    print("#pragma once")
    for name, (formula, function, interval, single, double) in TABLES.items():
        print(f"\n// {formula}")
        for dtype, size in (("float", single), ("double", double)):
            if size:
                print(table(name, dtype, size, function, interval))


if __name__ == "__main__":
    main()
