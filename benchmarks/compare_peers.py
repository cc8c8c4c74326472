"""Penstock in its modes against vLLM, llama.cpp, OpenVINO and transformers, alternating in one run on one machine.

Every contender runs in its own environment as a child process, one after the other, in rounds: A B C, A B C, … All get
the same workload (peers/workload.py) on the checkpoints below --models, which make_checkpoints.py and
peers/export_openvino.py make: bf16, w8a8, q4_0.gguf, ov8, ov4 and toy. A contender without environment or model, or
whose child fails, is an empty cell, and the page says why. peers/README.md says how to install them.

Results are kept in the JSON file beside the page after every child: what was cut off goes on with --continue, on the
same machine only. There, failed children are tried again, and --rounds and --contenders may ask for more.
"""

import argparse
import sys
from pathlib import Path

import reporting
from comparison.children import run_child
from comparison.contenders import OURS, PEERS, Job, Plan, Workload, chosen_names, plan_round
from comparison.page import page
from comparison.record import Machine, Record, Run

QUICK_STEPS = 8


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = reporting.parser(__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder with the checkpoints")
    parser.add_argument(f"--{OURS}", default=sys.executable, help="Penstock's interpreter (default: this one)")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", metavar="PYTHON", help=f"interpreter of the environment with {peer}")
    parser.add_argument("--contenders", help="comma-separated (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs (default 3)")
    parser.add_argument("--decode-steps", type=int, default=64, help="further tokens of each sequence (default 64)")
    parser.add_argument("--runs", type=int, default=2, help="timings in a child, the best counts (default 2)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of all engines (default: all cores)")
    parser.add_argument("--time-limit", type=float, default=900, help="seconds for one child (default 900)")
    parser.add_argument("--quick", action="store_true", help="a trial: one round of one run with few steps")
    parser.add_argument("--continue", dest="resume", action="store_true", help="go on with what was cut off")
    parser.add_argument("--write", type=Path, default=Path("build/peers.md"), help="page (default build/peers.md)")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.rounds, parsed.runs, parsed.decode_steps = 1, 1, QUICK_STEPS
    if min(parsed.rounds, parsed.runs, parsed.decode_steps, parsed.threads) < 1 or parsed.time_limit <= 0:
        parser.error("--rounds, --runs, --decode-steps, --threads and --time-limit must be positive.")
    return parsed


def interpreters(arguments: argparse.Namespace) -> dict[str, str | None]:
    """The interpreter of each engine's environment, None where none was given."""
    return {engine: getattr(arguments, engine.replace("-", "_")) for engine in (OURS, *PEERS)}


def open_record(arguments: argparse.Namespace, path: Path, workload: Workload) -> Record:
    """The record to go on with, or a new one."""
    if not arguments.resume:
        return Record(Machine.here(), workload)
    if not path.exists():
        raise SystemExit(f"--continue: there is no {path} to go on with.")
    return Record.load(path)


def run_rounds(record: Record, plan: Plan, workload: Workload, arguments: argparse.Namespace, path: Path) -> None:
    """Run what the record does not have yet; record and page are written after every child."""
    record.missing = plan.missing
    todo = [
        (number, job)
        for number in range(arguments.rounds)
        for job in plan.jobs
        if not record.has(number, job.contender, job.checkpoint)
    ]
    if todo:
        record.check_same(Machine.here(), workload)
    for number, job in todo:
        run = run_job(number, job, arguments.time_limit)
        ended = run.error or "done"
        print(f"round {number + 1}: {job.contender}, {job.checkpoint}: {run.seconds:.0f} s, {ended}", file=sys.stderr)
        record.add(run)
        keep(record, path, arguments.write)


def keep(record: Record, path: Path, written: Path) -> None:
    """Write raw figures and page."""
    record.save(path)
    written.write_text(page(record))


def run_job(number: int, job: Job, time_limit: float) -> Run:
    """One child."""
    outcome = run_child(job.command, time_limit)
    return Run(number, job.contender, job.checkpoint, round(outcome.seconds, 1), outcome.figures, outcome.error)


def main() -> None:
    arguments = parse()
    workload = Workload(decode_steps=arguments.decode_steps, runs=arguments.runs, threads=arguments.threads)
    plan = plan_round(chosen_names(arguments.contenders), interpreters(arguments), arguments.models, workload)
    path = arguments.write.with_suffix(".json")
    record = open_record(arguments, path, workload)
    run_rounds(record, plan, workload, arguments, path)
    keep(record, path, arguments.write)
    print(f"{arguments.write} and {path.name} are written.", file=sys.stderr)


if __name__ == "__main__":
    main()
