"""Quantiles of a handful of values, as the JSON file has them."""

from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float | None:
    """The value at rank q (the nearest one above), or None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4)


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Median, 99th percentile and largest under `NAME_p50`, `NAME_p99` and `NAME_max`."""
    return {
        f"{name}_p50": quantile(values, 0.5),
        f"{name}_p99": quantile(values, 0.99),
        f"{name}_max": quantile(values, 1.0),
    }
