"""The process of a rank: `python -m …assembly.rank SOCKET MEMORY STAYS RANK SIZE MEETING BEFORE BEHIND MODEL`.

`Links.start` says what these are: descriptors and numbers, or a dash where there is none.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from penstock.engine.ends import die_with_parent, exit_on_hang_up
from penstock.parallel.beating import begin_beating
from penstock.runtime.threads import limit_spinning

limit_spinning()
if __name__ == "__main__":
    # Before the imports that take long.
    if int(sys.argv[3]):
        die_with_parent()
    threading.Thread(target=exit_on_hang_up, args=(int(sys.argv[1]),), daemon=True).start()
    begin_beating(*map(int, (sys.argv[2], *sys.argv[4:6])))

# Torch's modules stay, and to look through them for garbage while they come takes a sixth of the import.
gc.disable()

import msgspec  # noqa: E402

from penstock import __version__  # noqa: E402
from penstock.assembly.backend import Storage, backend_of  # noqa: E402
from penstock.assembly.links import NONE  # noqa: E402
from penstock.assembly.meeting import met_at  # noqa: E402
from penstock.assembly.ranks import of_rank  # noqa: E402
from penstock.core.errors import EngineError, PenstockError  # noqa: E402
from penstock.engine.fail_points import FailPoints  # noqa: E402
from penstock.engine.messages import unpack_config  # noqa: E402
from penstock.kernels.dispatch import Dispatcher  # noqa: E402
from penstock.kernels.program import Program, compile_program  # noqa: E402
from penstock.loading.cache_folder import default_folder  # noqa: E402
from penstock.loading.checkpoint import open_checkpoint  # noqa: E402
from penstock.loading.fitting import model_of  # noqa: E402
from penstock.parallel.device_ranks import DeviceRanks  # noqa: E402
from penstock.parallel.follower import follow  # noqa: E402
from penstock.parallel.messages import (  # noqa: E402
    PROTOCOL_VERSION,
    Begin,
    Failed,
    Inbox,
    Loaded,
    Met,
    ProgramName,
    frame,
)
from penstock.parallel.passing import Before, Behind  # noqa: E402
from penstock.parallel.shared import SharedRanks  # noqa: E402
from penstock.parallel.slots import RankSlots  # noqa: E402
from penstock.runtime.storage import TORCH_DTYPES  # noqa: E402

gc.freeze()
gc.enable()


def main() -> int:
    """Compute what the first rank says until it closes its end of the socket; returns the exit status."""
    # The first rank decides when this one ends; an interrupt is meant for neither.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, memory = map(int, sys.argv[1:3])
    # The thread that shows that this process is not stopped has it mapped.
    os.close(memory)
    with socket.socket(fileno=descriptor) as end:
        try:
            meeting, before, behind = (None if each == NONE else int(each) for each in sys.argv[6:9])
            _serve(end, meeting, before, behind, model=sys.argv[9])
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return 0
        except PenstockError as error:
            return _fail(end, error.code, error.message)
        except Exception as error:
            traceback.print_exc()
            return _fail(end, EngineError.code, f"{type(error).__name__}: {error}")


def _fail(end: socket.socket, code: str, message: str) -> int:
    with contextlib.suppress(OSError):
        end.sendall(frame(Failed(code, message)))
    return 1


def _serve(end: socket.socket, meeting: int | None, before: int | None, behind: int | None, model: str) -> NoReturn:
    """Load this rank's part of the model, say so, and compute what is told."""
    inbox = Inbox(end)
    begin = inbox.to_rank()
    if not isinstance(begin, Begin) or (begin.version, begin.release) != (PROTOCOL_VERSION, __version__):
        raise EngineError("The first rank is of another release of Penstock; start all from one installation.")
    config, rank = unpack_config(begin.config), begin.rank
    assert config.ranks is not None, "there are several ranks"
    ranks = None
    if meeting is not None:
        ranks = met_at(meeting, of_rank(config, rank), config.ranks, rank)
        os.close(meeting)
    stage_before = None if before is None else Before(socket.socket(fileno=before))
    stage_behind = None if behind is None else Behind(socket.socket(fileno=behind))
    points = FailPoints(rank, {} if ranks is None else {"rank.meet": ranks.at_meeting})
    try:
        points.begin(config.faults)
        own = of_rank(config, rank)
        if model:
            # Folders are those of this machine.
            packed = own.model.packed_cache and str(default_folder())
            own = msgspec.structs.replace(
                own, model=msgspec.structs.replace(own.model, path=model, packed_cache=packed)
            )
        backend = backend_of(own)
        checkpoint = open_checkpoint(Path(own.model.path), weights=own.model.load_format != "dummy")
        whole = model_of(checkpoint).up_to(own.scheduler.max_model_len)
        declaration = whole.of_ranks(config.ranks, rank)
        weights = backend.load(own.model, checkpoint, declaration, lambda _done, _all: None).weights
        measured = own.cache.wish is not None and backend.memory is not None

        def pool(blocks: int) -> Storage:
            return backend.storage(own.cache.spec, blocks, 0)

        def another_pool(blocks: int) -> Storage:
            if backend.memory is not None:
                # What was made to measure a step goes first.
                backend.memory.settle()
            made = pool(blocks)
            end.sendall(frame(Loaded()))
            return made

        def program(name: ProgramName, storage: Storage) -> Program:
            tape = declaration.record(head=name == "logits")
            dispatcher = Dispatcher(backend.implementations)
            return compile_program(tape, weights, storage, TORCH_DTYPES[own.model.dtype], dispatcher, ranks)

        def slots(storage: Storage) -> RankSlots:
            assert isinstance(ranks, SharedRanks) and config.ranks is not None, "ranks have parts of the same layers"
            return RankSlots(storage.slots(), ranks, rank, config.ranks.whole, config.ranks.specs)

        # Where a step is measured first, the pool has a block until then.
        first = pool(1 if measured else own.pool_blocks)
        end.sendall(frame(Loaded()))
        if isinstance(ranks, DeviceRanks):
            ranks.join()
            end.sendall(frame(Met(backend.memory.settle().free if backend.memory is not None else 0)))
        follow(inbox, first, another_pool, program, slots, points, stage_before, stage_behind)
    except BaseException:
        # Ranks that wait for this one must not wait in vain.
        if ranks is not None:
            ranks.part()
        raise


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to do, and to take a model apart piece by piece would take a while.
    os._exit(status)
