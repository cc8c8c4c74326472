"""Buying devices instead of renting them: what an owned device costs a month, and when its price has come back."""

import msgspec

from penstock.core.errors import ConfigurationError

HOURS_A_MONTH = 730.0


class Purchase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What owning a device costs.

    Attributes:
        dollars: for a device with its part of the machine around it.
        years: over which it loses its whole value.
        watts: that a device and its part of the machine draw; 0: what the device's maker allows it.
        pue: power of the building over that of the machines in it (power usage effectiveness).
        kwh: dollars for a kilowatt-hour.
        upkeep: dollars a month for hosting and repairs of a device.
    """

    dollars: float
    years: float = 4.0
    watts: float = 0.0
    pue: float = 1.3
    kwh: float = 0.1
    upkeep: float = 0.0


class Owning(msgspec.Struct, frozen=True):
    """An owned device beside one that is rented for all hours.

    Attributes:
        purchase: what was taken, with the watts.
        rent_month, power_month, running_month, own_month: dollars a month: of rent; of power; of power and upkeep; of
            these and depreciation.
        own_hour: dollars for each of a month's 730 hours.
        break_even_months: after which the purchase has cost less than the rent; None: never, since running it costs as
            much.
        pays: whether that is before it has lost its value.
        least_hours: part of a month's hours from which owning costs less, where one rents only the hours that one uses;
            above 1: none.
    """

    purchase: Purchase
    rent_month: float
    power_month: float
    running_month: float
    own_month: float
    own_hour: float
    break_even_months: float | None
    pays: bool
    least_hours: float


def owning(purchase: Purchase, device_hour: float, device_watts: float) -> Owning:
    """A purchase against renting at `device_hour` dollars. Raises ConfigurationError without a rent or a power."""
    if device_hour <= 0:
        raise ConfigurationError("Buying is compared with renting; give a rent above zero with --price.")
    watts = purchase.watts or device_watts
    if not watts:
        raise ConfigurationError("The device's power is not known here; say its watts, as in --buy 20000,watts=700.")
    purchase = msgspec.structs.replace(purchase, watts=watts)
    rent = device_hour * HOURS_A_MONTH
    power = watts / 1000 * purchase.pue * purchase.kwh * HOURS_A_MONTH
    running = power + purchase.upkeep
    own = purchase.dollars / (12 * purchase.years) + running
    months = purchase.dollars / (rent - running) if rent > running else None
    return Owning(
        purchase=purchase,
        rent_month=rent,
        power_month=power,
        running_month=running,
        own_month=own,
        own_hour=own / HOURS_A_MONTH,
        break_even_months=months,
        pays=months is not None and months < 12 * purchase.years,
        least_hours=own / rent,
    )
