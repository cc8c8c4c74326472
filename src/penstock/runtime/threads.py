"""How torch's threads wait for each other."""

import os


def limit_spinning() -> None:
    """Let waiting threads spin for tens of microseconds instead of milliseconds.

    Called where a process starts that will compute, before it imports torch; afterwards it changes nothing.

    GNU's OpenMP lets a thread spin at the end of every parallel region. Where anything else wants the core (the API
    process, a client), each region then costs a time slice of the operating system, and a step 10 to 25 times its
    time. This many rounds bridge the gap between two regions. The library reads them once, from the environment.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
