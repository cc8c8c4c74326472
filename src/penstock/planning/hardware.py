"""Accelerators and processors as their makers describe them."""

import re
from difflib import get_close_matches

import msgspec

from penstock.core.ceilings import Ceilings
from penstock.core.errors import ConfigurationError
from penstock.planning.formats import Format, Rate

GIGA = 1e9
TERA = 1e12


class Device(msgspec.Struct, frozen=True):
    """One accelerator, or the processors of one socket.

    Attributes:
        memory: bytes; 0 where it depends on what is put in.
        bandwidth: of its memory, bytes a second.
        rates: dense operations a second by format; a product and its sum are two.
        link: bytes a second, in one direction, to the others of its machine; 0: none.
        watts: what its maker allows it.
        source: where these figures were read; "recalled" where they were not read again.
        parts: of a processor, over how many processes it is shared out; all figures but `watts` are of one of them.
    """

    name: str
    kind: str
    memory: float
    bandwidth: float
    rates: dict[Rate, float]
    link: float
    watts: float
    source: str
    parts: int = 1

    def part(self, parts: int, link: float) -> "Device":
        """What one of several processes has that share the processor, and give each other `link` bytes a second."""
        return self._times(1 / parts, self.parts * parts, link)

    @property
    def whole(self) -> "Device":
        """The processor that such processes share, for one of them alone."""
        return self._times(float(self.parts), 1, 0.0) if self.parts > 1 else self

    def _times(self, factor: float, parts: int, link: float) -> "Device":
        return msgspec.structs.replace(
            self,
            memory=self.memory * factor,
            bandwidth=self.bandwidth * factor,
            rates={rate: value * factor for rate, value in self.rates.items()},
            link=link,
            parts=parts,
        )

    def rate(self, of: Format) -> float:
        """Operations a second in a format; in 16 bits where the device has no rate of its own for it.

        The processor's kernels multiply all weights of 8 bits or fewer as integers.
        """
        rate = "int8" if self.kind == "cpu" and of.bits < 10 else of.rate
        return self.rates.get(rate) or self.rates["bf16"]

    @property
    def is_checked(self) -> bool:
        """Whether its figures were read in a source."""
        return self.source != "recalled"


class Machine(msgspec.Struct, frozen=True):
    """Devices of one kind that serve a model together."""

    device: Device
    count: int = 1

    def __str__(self) -> str:
        if self.device.parts > 1:
            return f"{self.count} ranks on {self.device.name}"
        return f"{self.count} x {self.device.name}" if self.count > 1 else self.device.name

    def replicas(self, devices: int) -> int:
        """How many there are of that many devices each. Raises ConfigurationError where some would be left."""
        if self.count % devices:
            raise ConfigurationError(
                f"{self.count} devices cannot be shared out among replicas of {devices}; give a multiple."
            )
        return self.count // devices


def _device(
    name: str,
    kind: str,
    memory: float,
    bandwidth: float,
    bf16: float,
    fp8: float,
    int8: float,
    fp4: float,
    link: float,
    watts: float,
    source: str,
) -> Device:
    """A row of the table: GB, GB/s, dense tera-operations a second, GB/s in one direction, watts; 0: there is none."""
    given: dict[Rate, float] = {"bf16": bf16, "fp8": fp8, "int8": int8, "fp4": fp4}
    rates = {rate: value * TERA for rate, value in given.items() if value}
    return Device(name, kind, memory * GIGA, bandwidth * GIGA, rates, link * GIGA, watts, source)


_SPECS = "InferenceX gpu-specs.ts, aiconfigurator systems/*.yaml (read 2026-11)"
_AIC = "aiconfigurator systems/*.yaml (read 2026-11)"
_IX = "InferenceX gpu-specs.ts (read 2026-11)"
_IBM = "IBM LLM-performance-prediction gpu_features.csv (read 2026-11)"
_BOOK = "scaling-book tpus.md (read 2026-11)"
_DERIVED = "cores x operations a cycle x clock; bandwidth of its channels"

# Sparse rates are twice these; makers print those (an H100's 1,979 in bf16 is one).
DEVICES: tuple[Device, ...] = (
    _device("H100 SXM", "gpu", 80, 3350, 989, 1979, 1979, 0, 450, 700, _SPECS),
    _device("H100 PCIe", "gpu", 80, 2000, 756, 1513, 1513, 0, 64, 350, _AIC),
    _device("H100 NVL", "gpu", 94, 3938, 835, 1671, 1671, 0, 300, 400, "recalled"),
    _device("H200 SXM", "gpu", 141, 4800, 989, 1979, 1979, 0, 450, 700, _SPECS),
    _device("H200 NVL", "gpu", 141, 4800, 835, 1671, 1671, 0, 450, 600, "recalled"),
    _device("GH200", "gpu", 96, 4000, 989, 1979, 1979, 0, 450, 900, "recalled"),
    _device("B200 SXM", "gpu", 180, 8000, 2250, 4500, 4500, 9000, 900, 1000, _SPECS),
    _device("B300 SXM", "gpu", 268, 8000, 2250, 4500, 154, 13500, 900, 1100, _SPECS),
    _device("GB200", "gpu", 186, 8000, 2500, 5000, 5000, 10000, 900, 1200, _SPECS),
    _device("GB300", "gpu", 279, 8000, 2500, 5000, 165, 15000, 900, 1400, _SPECS),
    _device("A100 80GB SXM", "gpu", 80, 2039, 312, 0, 624, 0, 300, 400, _AIC),
    _device("A100 80GB PCIe", "gpu", 80, 1935, 312, 0, 624, 0, 32, 300, _AIC),
    _device("A100 40GB SXM", "gpu", 40, 1555, 312, 0, 624, 0, 300, 400, _IBM),
    _device("A100 40GB PCIe", "gpu", 40, 1555, 312, 0, 624, 0, 32, 250, _IBM),
    _device("A30", "gpu", 24, 933, 165, 0, 330, 0, 32, 165, _AIC),
    _device("L40S", "gpu", 48, 864, 362, 733, 733, 0, 32, 350, _AIC),
    _device("L4", "gpu", 24, 300, 121, 242, 242, 0, 32, 72, _AIC),
    _device("A10", "gpu", 24, 600, 125, 0, 250, 0, 32, 150, _IBM),
    _device("A10G", "gpu", 24, 600, 70, 0, 140, 0, 32, 300, "recalled"),
    _device("A40", "gpu", 48, 696, 149.7, 0, 299.3, 0, 56, 300, "gpu-datasheet (read 2026-11)"),
    _device("RTX A6000", "gpu", 48, 768, 154.8, 0, 309.7, 0, 56, 300, "recalled"),
    _device("T4", "gpu", 16, 320, 65, 0, 130, 0, 16, 70, "recalled"),
    _device("V100 SXM2", "gpu", 32, 900, 125, 0, 0, 0, 150, 300, _IBM),
    _device("RTX 3090", "gpu", 24, 936, 71, 0, 284, 0, 56, 350, "recalled"),
    _device("RTX 4090", "gpu", 24, 1008, 165, 330, 661, 0, 32, 450, "tomshardware.com (read 2026-11)"),
    _device("RTX 5090", "gpu", 32, 1792, 209.5, 419, 838, 1676, 64, 575, "tomshardware.com (read 2026-11)"),
    _device("RTX 6000 Ada", "gpu", 48, 960, 364, 728.5, 728.5, 0, 32, 300, "recalled"),
    _device("RTX PRO 6000", "gpu", 96, 1792, 468, 936, 936, 1871, 64, 600, _AIC),
    _device("GB10", "gpu", 128, 273, 125, 250, 250, 500, 12.5, 140, "recalled"),
    _device("MI250X", "gpu", 128, 3277, 383, 0, 383, 0, 200, 560, "recalled"),
    _device("MI300X", "gpu", 192, 5300, 1307, 2615, 2615, 0, 448, 750, _IX),
    _device("MI325X", "gpu", 256, 6000, 1307, 2615, 2615, 0, 448, 1000, _IX),
    _device("MI355X", "gpu", 288, 8000, 2516, 5033, 5033, 10066, 576, 1400, _IX),
    _device("Gaudi 2", "gpu", 96, 2460, 432, 865, 0, 0, 300, 600, "Hot Chips 2024 slides (read 2026-11)"),
    _device("Gaudi 3", "gpu", 128, 3670, 1835, 1835, 0, 0, 600, 900, "Hot Chips 2024 slides (read 2026-11)"),
    _device("Arc Pro B60", "gpu", 24, 456, 98.3, 0, 197, 0, 28, 200, _AIC),
    _device("TPU v5e", "tpu", 16, 810, 197, 0, 394, 0, 200, 0, _BOOK),
    _device("TPU v5p", "tpu", 96, 2800, 459, 0, 918, 0, 600, 0, _BOOK),
    _device("TPU v6e", "tpu", 32, 1600, 920, 0, 1840, 0, 400, 0, _BOOK),
    _device("TPU v7", "tpu", 192, 7370, 2307, 4614, 0, 0, 600, 0, "recalled"),
    _device("M1 Max", "soc", 64, 400, 10.6, 0, 0, 0, 0, 60, "recalled"),
    _device("M2 Ultra", "soc", 192, 800, 27.2, 0, 0, 0, 0, 215, "recalled"),
    _device("M3 Max", "soc", 128, 400, 16.4, 0, 0, 0, 0, 80, "recalled"),
    _device("M3 Ultra", "soc", 512, 819, 28.4, 0, 0, 0, 0, 270, "recalled"),
    _device("M4 Max", "soc", 128, 546, 18.4, 0, 0, 0, 0, 80, "recalled"),
    _device("Xeon 8480+", "cpu", 0, 307, 229, 0, 459, 0, 60, 350, _DERIVED),
    _device("Xeon 8592+", "cpu", 0, 358, 249, 0, 498, 0, 60, 350, _DERIVED),
    _device("Xeon 6980P", "cpu", 0, 845, 524, 0, 1049, 0, 72, 500, _DERIVED),
    _device("EPYC 9654", "cpu", 0, 461, 14.7, 0, 29, 0, 64, 360, _DERIVED),
    _device("EPYC 9755", "cpu", 0, 614, 44, 0, 88, 0, 64, 500, _DERIVED),
    _device("Grace", "cpu", 480, 384, 28, 0, 57, 0, 450, 250, "recalled"),
)
# What a short name means.
_USUAL = {
    "h100": "h100sxm",
    "h200": "h200sxm",
    "b200": "b200sxm",
    "b300": "b300sxm",
    "a100": "a10080gbsxm",
    "a10080gb": "a10080gbsxm",
    "a10080": "a10080gbsxm",
    "a100sxm": "a10080gbsxm",
    "a100sxm80": "a10080gbsxm",
    "a100sxm80gb": "a10080gbsxm",
    "a10040gb": "a10040gbsxm",
    "h100sxm5": "h100sxm",
    "h100sxm80gb": "h100sxm",
    "h200sxm141gb": "h200sxm",
    "v100": "v100sxm2",
    "rtxpro6000bse": "rtxpro6000",
    "rtxpro6000blackwell": "rtxpro6000",
    "dgxspark": "gb10",
    "gh200480gb": "gh200",
}


def _key(name: str) -> str:
    """A name without its case, spaces and hyphens."""
    return re.sub(r"[^a-z0-9+]", "", name.lower())


_BY_NAME = {_key(device.name): device for device in DEVICES}
_COUNTED = re.compile(r"\s*(\d+)\s*(?:x|×)\s*(.+)", re.IGNORECASE)


def device_of(name: str) -> Device:
    """The device of a name, whatever its case, spaces and hyphens. Raises ConfigurationError with the nearest names."""
    key = _key(name).removeprefix("nvidia").removeprefix("amd")
    device = _BY_NAME.get(_USUAL.get(key, key))
    if device is None:
        near = get_close_matches(key, [*_BY_NAME, *_USUAL], n=3, cutoff=0.5)
        names = list(dict.fromkeys(_BY_NAME[_USUAL.get(each, each)].name for each in near))
        hint = f" Near it are {', '.join(names)}." if names else ""
        raise ConfigurationError(
            f"--on {name!r} is no device that is known here.{hint} `penstock plan --list` shows all."
        )
    return device


def device_of_ceilings(ceilings: Ceilings, name: str, memory: float) -> Device:
    """A processor whose limits were measured, with as much memory."""
    rates = {
        "fp32": ceilings.arithmetic.get("float32", 0.0),
        "bf16": ceilings.peak("bfloat16"),
        "int8": ceilings.peak("int8"),
    }
    return Device(
        name=name,
        kind="cpu",
        memory=memory,
        bandwidth=ceilings.read * GIGA,
        rates={rate: found * GIGA for rate, found in rates.items() if found},  # type: ignore[misc]
        link=0.0,
        watts=0.0,
        source="measured here",
    )


def machine_of(text: str) -> Machine:
    """What `--on` says: a device, or several of one kind as in "2x a100-80gb". Raises ConfigurationError."""
    counted = _COUNTED.fullmatch(text)
    if counted is None:
        return Machine(device_of(text))
    count = int(counted[1])
    if not 1 <= count <= 1_000_000:
        raise ConfigurationError(f"--on {text!r} has {count} devices; give 1 to 1,000,000.")
    return Machine(device_of(counted[2]), count)
