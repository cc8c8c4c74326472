"""What a plan is asked for."""

import msgspec

from penstock.planning.disk import Disk
from penstock.planning.estimates import Workload
from penstock.planning.hardware import Machine
from penstock.planning.latency import Deployment
from penstock.planning.owning import Purchase
from penstock.planning.prices import ApiPrice, DevicePrice


class Asked(msgspec.Struct, frozen=True):
    """What a plan is for.

    Attributes:
        ttft, tpot: seconds that they may take; None: any.
        rate: requests a second; None: not known.
        peak_rate: of the busiest minute; None: not known.
        said: what the requests are, for people.
        disk: beside each replica's KV pool; None: there is none.
        device_hour: dollars that a device costs an hour; None: not known.
        operations_month: dollars a month for those who operate the devices.
        api: what an API asks for the same; None: not known.
        device_price: the row of a price list that `device_hour` is from; None where it was given.
        reserved_hour: dollars an hour for a device that is rented for three years; None: not known.
        utilisation: part of what the devices could serve that is served over a month; None: not known.
        purchase: what it costs to buy a device instead; None: not asked.
        price_notes: what should be known of the prices.
    """

    deployment: Deployment
    machine: Machine
    workload: Workload
    ttft: float | None = None
    tpot: float | None = None
    rate: float | None = None
    device_hour: float | None = None
    operations_month: float = 0.0
    api: ApiPrice | None = None
    device_price: DevicePrice | None = None
    reserved_hour: float | None = None
    utilisation: float | None = None
    purchase: Purchase | None = None
    price_notes: tuple[str, ...] = ()
    peak_rate: float | None = None
    said: str = ""
    disk: Disk | None = None
