"""A sweep as a job of a Ray cluster: its driver runs there, and outlives the terminal that submitted it.

This speaks the job server's documented REST interface itself: Ray's own client wants the packages of a server.
"""

from __future__ import annotations

import os

import httpx

from orchestrator.errors import refuse

ANSWERS_WITHIN_S = 30.0


def submit_job(address: str, entrypoint: str, name: str) -> str:
    """The id of the job that runs the shell command `entrypoint`, by Ray's job server at `address` (`http://…:8265`).

    A cluster with token authentication is given the token in `RAY_AUTH_TOKEN`. No other variable of this environment
    goes with a job, since Ray keeps what does: keys must be set on the cluster. Raises UserError where no job server
    answers, or it refuses.
    """
    token = os.environ.get("RAY_AUTH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    job = {"entrypoint": entrypoint, "submission_id": name}
    try:
        answer = httpx.post(f"{address.rstrip('/')}/api/jobs/", json=job, headers=headers, timeout=ANSWERS_WITHIN_S)
        answer.raise_for_status()
        return str(answer.json()["submission_id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise refuse("--address", address, f"no job could be made there ({reason})") from None
