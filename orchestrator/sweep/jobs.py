"""Submits a sweep as a job of a Ray cluster, whose driver outlives the submitting command.

Speaks the documented REST interface of the job server directly: Ray's own client needs the packages
of a server.
"""

from __future__ import annotations

import os

import httpx

from orchestrator.errors import refuse

# A server may take long to make a job; one that is there accepts the connection at once.
ANSWERS_WITHIN_S = httpx.Timeout(30.0, connect=5.0)


def submit_job(address: str, entrypoint: str, name: str) -> str:
    """Make a job of a shell command at the job server `address` (`http://…:8265`); return its id.

    A cluster with token authentication gets the token in `RAY_AUTH_TOKEN`. The job gets no
    variables of this environment, since Ray would store them: keys must be set on the cluster.
    Raises UserError if no job server answers, or if it refuses.
    """
    token = os.environ.get("RAY_AUTH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    job = {"entrypoint": entrypoint, "submission_id": name}
    try:
        answer = httpx.post(
            f"{address.rstrip('/')}/api/jobs/", json=job, headers=headers, timeout=ANSWERS_WITHIN_S
        )
        answer.raise_for_status()
        return str(answer.json()["submission_id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise refuse("--address", address, f"a server that takes the job ({reason})") from None
