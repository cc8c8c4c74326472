"""Files of prices: a table in CSV, or JSON in the form of LiteLLM's `model_prices_and_context_window.json`."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning.hardware import device_of
from penstock.planning.prices import KINDS, ApiPrice, DevicePrice, PriceList

_MILLION = 1e6
_MODEL_COLUMNS = ("model", "input", "output")
_DEVICE_COLUMNS = ("device", "hour")
_COLUMNS = (*_MODEL_COLUMNS, "cached", "batch_discount", "deprecated", *_DEVICE_COLUMNS, "kind", "as_of")
# Of the names of prices beyond a number of tokens.
_STEPS = b"_cost_per_token_above_"
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


class _Entry(msgspec.Struct, frozen=True):
    """What is read of a model in LiteLLM's file: dollars a token. Other fields are of no use here."""

    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    input_cost_per_token_batches: float | None = None
    deprecation_date: str | None = None


def read_prices(text: str, called: str) -> PriceList:
    """The prices in a file's text. Raises ConfigurationError that says which row or model is wrong, and in what."""
    if text.lstrip().startswith("{"):
        return litellm_prices(text, called)
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = set(rows[0]) if rows else set()
    if not rows or not (columns >= {*_MODEL_COLUMNS} or columns >= {*_DEVICE_COLUMNS}):
        raise ConfigurationError(
            f"{called} has no rows with the columns model,input,output (dollars a million tokens) or device,hour "
            "(dollars an hour), and is no JSON in LiteLLM's form."
        )
    unknown = sorted(str(column) for column in columns - {*_COLUMNS})
    if unknown:
        raise ConfigurationError(f"{called} has unknown columns {', '.join(unknown)}; known are {', '.join(_COLUMNS)}.")
    devices, models = [], []
    for number, row in enumerate(rows, 2):
        given = {name: (value or "").strip() for name, value in row.items() if name in _COLUMNS}
        where = f"{called}, line {number}"
        if given.get("device"):
            devices.append(_device_row(given, where))
        else:
            models.append(_model_row(given, where))
    return PriceList(called, tuple(devices), tuple(models))


def litellm_prices(text: str | bytes, called: str, as_of: str = "") -> PriceList:
    """The prices of models in LiteLLM's form, of those that have a price a token. Raises ConfigurationError."""
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{called} is no JSON object of models: {error}.") from None
    models = tuple(_entries(entries, called, as_of))
    if not models:
        raise ConfigurationError(f"{called} has no model with input_cost_per_token and output_cost_per_token.")
    return PriceList(called, models=models)


def _entries(entries: Mapping[str, msgspec.Raw], called: str, as_of: str) -> Iterator[ApiPrice]:
    for name, raw in entries.items():
        # An example that describes the fields, in words.
        if name == "sample_spec":
            continue
        try:
            entry = msgspec.json.decode(raw, type=_Entry)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{called}: the entry of {name!r} cannot be read: {error}.") from None
        given, made = entry.input_cost_per_token, entry.output_cost_per_token
        if given is None or made is None:
            continue
        cached, batch = entry.cache_read_input_token_cost, entry.input_cost_per_token_batches
        if min(given, made, cached or 0.0, batch or 0.0) < 0:
            raise ConfigurationError(f"{called}: the entry of {name!r} has a price below zero.")
        until = entry.deprecation_date or ""
        # Hundred-millionths of a dollar are what prices are made of; more digits are what binary fractions leave.
        yield ApiPrice(
            input=round(given * _MILLION, 8),
            output=round(made * _MILLION, 8),
            cached=None if cached is None else round(cached * _MILLION, 8),
            model=name,
            batch_discount=round(1 - batch / given, 4) if batch is not None and given else 0.0,
            deprecated=until if _DATE.fullmatch(until) else "",
            as_of=as_of,
            source=called,
            has_steps=_STEPS in bytes(raw),
        )


def _model_row(row: Mapping[str, str], where: str) -> ApiPrice:
    if not row.get("model"):
        raise ConfigurationError(f"{where} names neither a model nor a device.")
    discount = _number(row, "batch_discount", where, otherwise=0.0)
    if discount > 1:
        raise ConfigurationError(f"{where}: batch_discount {discount:g} is no part of a price; give 0 to 1.")
    return ApiPrice(
        input=_number(row, "input", where),
        output=_number(row, "output", where),
        cached=_number(row, "cached", where) if row.get("cached") else None,
        model=row["model"],
        batch_discount=discount,
        deprecated=_date(row, "deprecated", where),
        as_of=_date(row, "as_of", where),
        source=where,
    )


def _device_row(row: Mapping[str, str], where: str) -> DevicePrice:
    try:
        name = device_of(row["device"]).name
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message.replace('--on', 'device', 1)}") from None
    kind = row.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise ConfigurationError(f"{where}: kind {kind!r} is none of {', '.join(KINDS)}.")
    hour = _number(row, "hour", where)
    return DevicePrice(name, kind, hour, hour, hour, _date(row, "as_of", where), where)


def _number(row: Mapping[str, Any], column: str, where: str, otherwise: float | None = None) -> float:
    text = row.get(column) or ""
    if not text and otherwise is not None:
        return otherwise
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ConfigurationError(f"{where}: {column} {text!r} is no number of dollars from 0 on.")
    return value


def _date(row: Mapping[str, str], column: str, where: str) -> str:
    text = row.get(column) or ""
    if text and not _DATE.fullmatch(text):
        raise ConfigurationError(f"{where}: {column} {text!r} is no date; write 2026-11-26.")
    return text
