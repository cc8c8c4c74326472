"""What came at gateways, whose counts begin anew with them."""

from penstock.routing.autoscaling import Counted


class Totals:
    """What came at all gateways together. Each counts from 0 when it starts."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], Counted] = {}
        self._whole: dict[str, Counted] = {}

    def add(self, gateway: int, model: str, counted: Counted) -> Counted:
        """Take in what one tells now; all that came for the model."""
        before = self._last.get((gateway, model), Counted())
        if counted.requests < before.requests:
            before = Counted()
        self._last[gateway, model] = counted
        whole = self._whole.get(model, Counted())
        fields = Counted.__struct_fields__
        more = {name: getattr(whole, name) + getattr(counted, name) - getattr(before, name) for name in fields}
        self._whole[model] = Counted(**more)
        return self._whole[model]
