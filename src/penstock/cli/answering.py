"""What a server and its clients on this machine add to an engine's steps, measured for `penstock calibrate`.

The bundled model has steps of about a millisecond, beside which it shows. What it is does not depend on the model.
"""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from penstock.assembly.build import build_engine
from penstock.assembly.prepare import prepare
from penstock.bench.load.arrivals import Arrivals, Closed
from penstock.bench.load.lengths import Lengths
from penstock.bench.load.metrics import Summary
from penstock.bench.load.outcome import Outcome
from penstock.bench.load.plan import Plan
from penstock.bench.load.session import Stage, measure
from penstock.bench.load.workload import Shape
from penstock.bench.steps import Engine, StepCase, means, measure_steps
from penstock.cli.calibrate import engine_in
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.planning.own import Answered, Answering, answering_of, median_answering

_MODEL = "haiku"
_HOST = "127.0.0.1"
# Turns in which the engine is measured alone and behind its server: where others use the machine, its speed drifts.
_TURNS = 5
# Requests at a time, tokens of each prompt, and for how many seconds a turn measures their steps without a server.
_SIZES, _PROMPT, _SECONDS = (1, 4, 12), 8, 3.0
# Between which lengths outputs are, so that requests do not all end together; and those of the short ones.
_OUTPUTS, _SHORT = Lengths("uniform", 32, 96), Lengths("uniform", 4, 12)
# Requests of a turn for each number at a time, at least; and as multiples of that number, since fewer run at a load's
# end. Last, those with short outputs, or of one token, 12 at a time.
_REQUESTS, _WAVES, _SHORT_REQUESTS = 24, 6, 100
_START_SECONDS = 300.0


def measure_answering(threads: int | None) -> Answering:
    """Measure an engine with that many threads alone, and behind its server. Raises ConfigurationError."""
    options = EngineOptions.of(model=_MODEL, quantization="none", speculative="off", threads=threads)
    built = build_engine(prepare(options, api_beside=True).config, lambda _done, _total: None)
    asked = [] if threads is None else ["--threads", str(threads)]
    with _served(asked) as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return median_answering([_turn(engine_in(built), url, runner) for _ in range(_TURNS)])


def _turn(engine: Engine, url: str, runner: asyncio.Runner) -> Answering:
    beside = _SIZES[1]
    cases = (*(StepCase(size, _PROMPT) for size in _SIZES), StepCase(1, _PROMPT, beside))
    steps = means([step for _, found in measure_steps(engine, cases, _SECONDS) for step in found])
    decoding = {int(step.rows.decodes): step.seconds for step in steps if not step.rows.chunks}
    # A prompt beside a number of sequences that decode.
    prompts = {int(step.rows.decodes): step.seconds for step in steps if step.rows.chunks == ((0.0, float(_PROMPT)),)}
    if not decoding.keys() >= set(_SIZES) or not prompts.keys() >= {0, beside}:
        raise ConfigurationError(f"This machine is too slow to measure what answering takes within {_SECONDS:g} s.")
    long = [_measured(runner, _load(url, size, _OUTPUTS, max(_REQUESTS, _WAVES * size))) for size in _SIZES]
    short = _measured(runner, _load(url, _SIZES[-1], _SHORT, _SHORT_REQUESTS))
    single = _measured(runner, _load(url, _SIZES[-1], Lengths("fixed", 1), _SHORT_REQUESTS))
    points = [
        Answered(size, _tokens(summary), decoding[size], _tpot(summary))
        for size, summary in zip(_SIZES, long, strict=True)
    ]
    assert long[0].ttft is not None, "all were answered"
    return answering_of(
        points,
        Answered(_SIZES[-1], _tokens(short), decoding[_SIZES[-1]], _tpot(short)),
        prompt=prompts[beside] - decoding[beside],
        apart=single.seconds / single.succeeded,
        first=long[0].ttft.mean - prompts[0],
    )


def _tokens(summary: Summary) -> float:
    """Of an output, in the mean."""
    return (summary.output_tokens or 0) / summary.succeeded


def _tpot(summary: Summary) -> float:
    assert summary.tpot is not None, "outputs have several tokens"
    return summary.tpot.mean


def _measured(runner: asyncio.Runner, load: Plan) -> Summary:
    """Of a load. Raises ConfigurationError where a request was not answered."""
    (stage,) = runner.run(measure(load, None, _Silent())).stages
    if stage.summary.failed or not stage.summary.succeeded:
        raise ConfigurationError("The server that was started to measure what answering takes did not answer all.")
    return stage.summary


def _load(url: str, size: int, output: Lengths, requests: int) -> Plan:
    """Requests, `size` at a time, whose prompts are short, so that nearly all steps only decode."""
    shape = Shape(input=Lengths("fixed", _PROMPT), output=output)
    return Plan(url=url, stages=(Closed(size),), shape=shape, requests=requests, warmup=size, ignore_eos=True)


class _Silent:
    """Prints nothing of how it goes."""

    def begin(self, arrivals: Arrivals, warmup: bool) -> None:
        """A stage begins."""

    def outcome(self, outcome: Outcome, in_flight: int) -> None:
        """A request has ended."""

    def end(self, stage: Stage) -> None:
        """A stage has ended."""


@contextmanager
def _served(options: Sequence[str]) -> Iterator[str]:
    """The bundled model behind a server of this machine, at the address that is returned."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    # Settings of a server that is to be asked for keys, or to have other limits, are not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "serve", _MODEL]
        command += ["--host", _HOST, "--port", str(port), "--data-dir", folder, "--log-level", "warning"]
        command += ["--quantization", "none", "--speculative", "off", *options]
        with said.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        try:
            _wait_until_ready(process, port, said)
            yield f"http://{_HOST}:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=_START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, said: Path) -> None:
    """Return when requests are served. Raises ConfigurationError with the server's last words."""
    last = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < last:
        connection = http.client.HTTPConnection(_HOST, port, timeout=30)
        try:
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            # It does not listen yet.
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    what = "The server that was started to measure what answering takes"
    if process.poll() is None:
        raise ConfigurationError(f"{what} was not ready after {_START_SECONDS:g} s.")
    words = said.read_text(errors="replace").strip().splitlines()[-3:]
    raise ConfigurationError(f"{what} ended: {' '.join(words) or 'it said nothing'}")
