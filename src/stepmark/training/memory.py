"""Memory that a training step frees is kept for the next one.

A step on a CPU takes and frees gigabytes of activations in large pieces. glibc gives such pieces back to the system at once, which then
hands out zeroed pages again, a page fault for every four kilobytes: 5 to 10% of a step of a small model.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for as long as it runs. Its memory then stays at its peak.

    Returns:
        Whether the C library could be told; False where it is not glibc (macOS, Windows, Alpine).
    """
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Older versions take no more than 32 MB for the second.
    kept = bool(tell(_MMAP_THRESHOLD, 2**30)) or bool(tell(_MMAP_THRESHOLD, 2**25))
    return bool(tell(_TRIM_THRESHOLD, 2**31 - 1)) and kept
