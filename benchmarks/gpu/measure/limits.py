"""Section `device`: what it is, and the two limits that other figures are shares of."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata

import torch

from measure.place import Limits, Place, say
from measure.report import Row
from measure.timing import medians


def versions() -> dict[str, str]:
    """Of what decides speed."""
    found = {"Python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("triton", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def device_name(is_dry: bool) -> str:
    return "stand-in on the host" if is_dry else torch.cuda.get_device_name()


def driver() -> str:
    """The driver's version, or why it is not known."""
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"driver unknown ({type(error).__name__})"
    return "driver " + done.stdout.strip().split("\n")[0]


def measure_limits(place: Place) -> Limits:
    """A large copy, counting bytes read and written, and a large product."""
    size, side = place.either((2 << 30, 8192), (1 << 16, 64))
    times = copy_and_product(place, size, side)
    if not place.is_dry:
        # Kept for later tensors, it would be neither free nor an engine's in that engine's account.
        torch.cuda.empty_cache()
    return Limits(2 * size / times["copy"], 2 * side**3 / times["product"])


def copy_and_product(place: Place, size: int, side: int) -> dict[str, float]:
    """Seconds of `copy`, of so many bytes, and of `product`, of square matrices."""
    source = torch.randint(-128, 127, (size,), dtype=torch.int8, device=place.device)
    target = torch.empty_like(source)
    left, right = torch.randn(2, side, side, device=place.device).to(torch.bfloat16)
    product = torch.empty_like(left)
    return medians(
        place,
        {
            "copy": lambda: target.copy_(source),
            "product": lambda: torch.mm(left, right, out=product),
        },
        repeats=50,
    )


def device(place: Place) -> None:
    """Report the device's limits."""
    say(f"{device_name(place.is_dry)}; {driver() if not place.is_dry else 'no driver'}")
    for name, number in versions().items():
        say(f"{name} {number}")
    limits = measure_limits(place)
    details = {"driver": place.either(driver(), "")} if not place.is_dry else {}
    copied = Row("device", "copy bandwidth", limits.bytes_per_s / 1e12, "TB/s", details=details)
    place.tell(copied)
    place.tell(Row("device", "8192^3 bf16 product", limits.flops_per_s / 1e12, "TFLOP/s"))


def limits_of(rows: list[Row]) -> Limits | None:
    """The limits that section `device` reported, if it ran."""
    found = {row.work: row.value for row in rows if row.section == "device"}
    copied, multiplied = found.get("copy bandwidth"), found.get("8192^3 bf16 product")
    if copied is None or multiplied is None:
        return None
    return Limits(copied * 1e12, multiplied * 1e12)
