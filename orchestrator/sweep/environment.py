"""Variables that Ray and Tune read when they are imported; set them before the first import."""

from __future__ import annotations

import os
import secrets

QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",  # no reporter of Tune's own
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C reaches the command, which says how to go on
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a process that asked for no GPU sees none
    # Ray ends the process of a driver that has lost its server for this long. The sweep notices
    # within seconds, and then needs the time to show and write its results.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
}
# Ray's switch for machines that are never part of a cluster: all its servers bind to 127.0.0.1. Ray
# then keeps that address; at the machine's external address a server on loopback would not answer.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PRIVATE = LOOPBACK | {
    # Prestarted workers serve tasks; a sweep has only actors, which get processes of their own.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


def prepare_environment(address: str | None) -> None:
    """Set the variables for the cluster at `address`, or (None) for a private cluster."""
    if address is None:
        # Only this driver and the processes it starts know this token: Ray refuses other users of
        # the machine, and writes no token into the home folder.
        more = PRIVATE | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    else:
        more = LOOPBACK if _is_loopback(address) else {}
    for name, value in (QUIET | more).items():
        os.environ.setdefault(name, value)


def _is_loopback(address: str) -> bool:
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost")
