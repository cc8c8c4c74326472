"""What options say of prices, for plans: files of prices are read here, and the day is known."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from datetime import date
from math import inf, isfinite
from pathlib import Path

import msgspec

from penstock.cli.files import read_text
from penstock.cli.plan_options import MoneyOptions
from penstock.cli.price_files import litellm_prices, read_prices
from penstock.core.errors import ConfigurationError
from penstock.planning.hardware import Device
from penstock.planning.listed import LISTED
from penstock.planning.owning import Purchase
from penstock.planning.prices import KINDS, ApiPrice, DevicePrice, PriceList, aged, ended, model_price

_LITELLM = "model_prices_and_context_window_backup.json"
_MODELS_OF_LITELLM = "litellm"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan takes for prices; fields as those of `Asked`, and `notes` of what should be known of them."""

    device_hour: float | None = None
    device_price: DevicePrice | None = None
    reserved_hour: float | None = None
    api: ApiPrice | None = None
    purchase: Purchase | None = None
    notes: tuple[str, ...] = ()


def prices_of(money: MoneyOptions, device: Device, today: date, *, rate: float | None) -> Prices:
    """The prices that options name, or that lists have of a device. Raises ConfigurationError."""
    if not 0 <= money.operations < inf:
        raise ConfigurationError("--operations is a finite number of dollars a month.")
    if money.utilisation is not None:
        if not 0 < money.utilisation <= 1:
            raise ConfigurationError(f"--utilisation {money.utilisation:g} is no part; give more than 0, up to 1.")
        if rate is not None:
            raise ConfigurationError(
                "--utilisation is what --rate, or a trace's, comes to on the replicas that it needs; give one."
            )
    given = None if money.prices is None else _given(money.prices)
    lists = [LISTED] if given is None else [given, LISTED]
    hour, row = _device_hour(money.price, device, lists)
    api = None if money.api_price is None else _api_price(money.api_price, lists)
    if given is not None and not _used(given, row, api):
        raise ConfigurationError(
            f"Nothing of --prices {money.prices} is used: --price takes no price of {device.name} from it, and "
            "--api-price names no model of it."
        )
    _check_hour(money, device, hour)
    reserved = next(_of_kind(lists, device.name, ("reserved",)), None)
    purchase = None if money.buy is None else _purchase(money.buy)
    if purchase is not None and row is not None and row.kind == "own":
        raise ConfigurationError("--buy is compared with renting, and --price own is no rent; give another --price.")
    return Prices(
        device_hour=hour,
        device_price=row,
        reserved_hour=None if reserved is None else reserved.dollars,
        api=api,
        purchase=purchase,
        notes=tuple(_notes(device, hour, row, api, today)),
    )


def _notes(
    device: Device, hour: float | None, row: DevicePrice | None, api: ApiPrice | None, today: date
) -> Iterator[str]:
    """What is missing, old, without a date, or at its end."""
    if hour is None:
        yield f"No price of {device.name} is known here, so nothing is said of costs; give it with --price."
    if row is not None and row.as_of:
        yield from aged(f"{device.name} ({row.kind})", row.as_of, _days(row.as_of, today))
    if api is not None and api.model:
        if api.as_of:
            yield from aged(api.model, api.as_of, _days(api.as_of, today))
        elif api.source.startswith(_MODELS_OF_LITELLM):
            yield f"The price of {api.model} is from the installed {api.source}, which says no date."
        yield from ended(api, today.isoformat())


def _days(as_of: str, today: date) -> int:
    try:
        return (today - date.fromisoformat(as_of)).days
    except ValueError:
        raise ConfigurationError(f"{as_of} is no day of the calendar; correct as_of in the file of --prices.") from None


def _given(text: str) -> PriceList:
    """The prices of a file, or of the installed library."""
    if text == _MODELS_OF_LITELLM:
        found = installed_prices()
        if found is None:
            raise ConfigurationError("--prices litellm: the library is not installed here; name a file of prices.")
        return found
    return read_prices(read_text(Path(text), "--prices"), Path(text).name)


def installed_prices() -> PriceList | None:
    """The prices that an installed litellm has, without importing it; None where there is none."""
    spec = importlib.util.find_spec(_MODELS_OF_LITELLM)
    reader = getattr(spec.loader, "get_resource_reader", None) if spec is not None else None
    resources = None if reader is None else reader(_MODELS_OF_LITELLM)
    if resources is None:
        return None
    try:
        with resources.open_resource(_LITELLM) as file:
            text = file.read()
    except OSError:
        return None
    try:
        called = f"{_MODELS_OF_LITELLM} {importlib.metadata.version(_MODELS_OF_LITELLM)}"
    except importlib.metadata.PackageNotFoundError:
        called = _MODELS_OF_LITELLM
    return litellm_prices(text, called)


def _device_hour(
    text: str | None, device: Device, lists: Sequence[PriceList]
) -> tuple[float | None, DevicePrice | None]:
    """Dollars an hour for a device, and the row that they are from; None where they are not known."""
    if text is None or text in KINDS:
        row = next(_of_kind(lists, device.name, KINDS if text is None else (text,)), None)
        if row is None and text is not None:
            known = [price.kind for prices in lists for price in prices.devices if price.device == device.name]
            hint = f"known are {', '.join(known)}" if known else "no price of it is known here"
            raise ConfigurationError(
                f"--price {text}: there is no such price of {device.name}, {hint}; give dollars an hour."
            )
        return (None if row is None else row.dollars), row
    try:
        dollars = float(text)
    except ValueError:
        raise ConfigurationError(
            f"--price {text!r} is neither dollars an hour for a device nor one of {', '.join(KINDS)}."
        ) from None
    if not isfinite(dollars) or dollars < 0:
        raise ConfigurationError(f"--price {text} is no price; give a finite number of dollars from 0 on.")
    return dollars, None


def _of_kind(lists: Sequence[PriceList], device: str, kinds: Sequence[str]) -> Iterator[DevicePrice]:
    for prices in lists:
        for kind in kinds:
            yield from (price for price in prices.devices if price.device == device and price.kind == kind)


def _used(given: PriceList, row: DevicePrice | None, api: ApiPrice | None) -> bool:
    """Whether a price of a file is one that the plan takes."""
    return any(price is row for price in given.devices) or any(price is api for price in given.models)


def _check_hour(money: MoneyOptions, device: Device, hour: float | None) -> None:
    """Raise ConfigurationError where an option has no effect without a device's price, or makes no sense with it."""
    if hour is not None:
        return
    asked = {
        "--api-price": money.api_price is not None,
        "--operations": bool(money.operations),
        "--utilisation": money.utilisation is not None,
        "--buy": money.buy is not None,
    }
    for option, given in asked.items():
        if given:
            raise ConfigurationError(
                f"{option} needs the price of a device, and none of {device.name} is known here; give it with --price."
            )


def _api_price(text: str, lists: Sequence[PriceList]) -> ApiPrice:
    """Dollars a million input and output tokens, as in "0.5,1.5", and of cached input ones behind them; or a model's.

    An installed litellm is asked where no list has the model.
    """
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if prices or not re.search("[a-z]", text, re.IGNORECASE):
        if len(prices) not in (2, 3) or not all(0 <= price < inf for price in prices):
            raise ConfigurationError(
                f"--api-price {text!r} is no pair of prices; write dollars a million tokens as in 0.5,1.5, or a model."
            )
        return ApiPrice(prices[0], prices[1], prices[2] if len(prices) > 2 else None)
    if all(each.find(text) is None for each in lists):
        installed = installed_prices()
        lists = [*lists, installed] if installed is not None else lists
    return model_price(lists, text)


def _purchase(text: str) -> Purchase:
    """What "25000,years=5,kwh=0.12" says of owning a device. Raises ConfigurationError."""
    names = [name for name in Purchase.__struct_fields__ if name != "dollars"]
    wanted = f"write dollars a device, as in 25000 or 25000,years=5,kwh=0.12, of {', '.join(names)}"
    first, *rest = text.split(",")
    values: dict[str, float] = {}
    for part in (f"dollars={first}", *rest):
        name, _, number = part.strip().partition("=")
        if name not in ("dollars", *names) or name in values or (name == "dollars" and part in rest):
            raise ConfigurationError(f"--buy: {part[:80]!r} is not known or there twice; {wanted}.")
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = inf
        if not 0 <= values[name] < inf or (name in ("dollars", "years") and not values[name]):
            raise ConfigurationError(f"--buy: {number[:80]!r} is no {name}; {wanted}.")
    if values.get("pue", 1.0) < 1:
        raise ConfigurationError(
            f"--buy: a pue of {values['pue']:g} is less power than the machines take; give 1 or more."
        )
    return Purchase(**values)
