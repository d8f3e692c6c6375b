"""What starts a sweep on a cluster, in `docker/`: as far as it can be tried without one."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import trb_parser
from tests.sweeps import ROOT

SBATCH = ROOT / "docker" / "slurm" / "sweep.sbatch"
RAY_VERSION = re.search(
    r"^ray==(\S+)", (ROOT / "docker/lock/runtime.txt").read_text(), flags=re.MULTILINE
)


def program(folder: Path, name: str, lines: str) -> None:
    """An executable shell script in `folder`."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of Slurm on two nodes whose `srun` says what it was to run."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    program(
        programs,
        "srun",
        'echo "$@"; echo "mode $RAY_AUTH_MODE token $RAY_AUTH_TOKEN in $PWD"\n'
        'echo "cores $SRUN_CPUS_PER_TASK"',
    )
    program(programs, "hostname", "echo 10.0.0.7 192.168.0.7")
    program(programs, "python", 'echo "a secret"')
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "64",
    }


def run(job: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SBATCH), *arguments]
    return subprocess.run(command, env=job, capture_output=True, text=True, check=False)


def test_a_job_of_slurm_starts_ray_on_all_its_nodes_and_submits_on_the_first(
    job: dict[str, str],
) -> None:
    done = run(job, "experiments/paper-small.yaml", "seeds=[0, 1]")
    assert done.returncode == 0, done.stderr
    command, secret, cores = done.stdout.splitlines()
    folder = job["SLURM_SUBMIT_DIR"]
    assert secret == f"mode token token a secret in {folder}"
    # From Slurm 22.05 on srun takes the cores of a task from neither the job nor its environment.
    assert cores == "cores 64"
    ray, _, submit = command.partition(" -- ")
    assert ray.startswith(
        "--cpus-per-task=64 --cpu-bind=none "
        "ray symmetric-run --address 10.0.0.7:23456 --min-nodes 2 --num-cpus 64 "
    )
    assert submit == (
        f"trb submit experiments/paper-small.yaml seeds=[0, 1] --address 10.0.0.7:23456 --runs {folder}/runs"
    )


def test_a_job_has_its_nodes_whole_memory_and_without_cores_asks_for_one(
    job: dict[str, str],
) -> None:
    """`--exclusive` alone gives all cores and GPUs, and only a site's default of the memory."""
    options = re.findall(r"^#SBATCH (--\S+)", SBATCH.read_text(), flags=re.MULTILINE)
    assert {"--exclusive", "--mem=0"} <= set(options)
    del job["SLURM_CPUS_PER_TASK"]
    done = run(job, "paper.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--cpus-per-task=1 --cpu-bind=none ray ")


def test_a_job_without_an_experiment_is_refused(job: dict[str, str]) -> None:
    done = run(job)
    assert (done.returncode, done.stdout) == (2, "")
    assert "EXP.yaml" in done.stderr


def test_a_chain_of_jobs_ends_with_the_sweep_and_with_a_mistake(
    job: dict[str, str], tmp_path: Path
) -> None:
    """A follower is queued for the case that this job does not end well, and taken back where it
    would end as this one did.
    """
    programs = tmp_path / ".venv" / "bin"
    program(programs, "sbatch", f'echo "chain $TRB_CHAIN $*" >> {tmp_path}/queued; echo 77')
    program(programs, "scancel", f'echo "$*" >> {tmp_path}/cancelled')
    for code, cancelled in ((0, ""), (1, ""), (2, "77\n"), (3, "77\n")):
        program(programs, "srun", f"exit {code}")
        for name in ("queued", "cancelled"):
            (tmp_path / name).write_text("")
        done = run(job | {"TRB_CHAIN": "2"}, "paper.yaml", "--max-gpu-hours", "9")
        assert done.returncode == code
        assert (tmp_path / "cancelled").read_text() == cancelled
        queued = (tmp_path / "queued").read_text()
        assert queued.startswith("chain 1 --parsable --kill-on-invalid-dep=yes ")
        assert "--dependency=afternotok:123456 " in queued
        assert queued.endswith("sweep.sbatch paper.yaml --max-gpu-hours 9\n")
    (tmp_path / "queued").write_text("")
    run(job | {"TRB_CHAIN": "0"}, "paper.yaml")
    assert (tmp_path / "queued").read_text() == ""


@pytest.fixture
def sweep() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker/kubernetes/sweep.yaml").read_text())["spec"]


def test_the_job_of_kubernetes_says_what_trb_understands(sweep: dict[str, Any]) -> None:
    trb, *words = shlex.split(sweep["entrypoint"])
    options = trb_parser().parse_args(words)
    assert options.max_gpu_hours == 180
    assert (trb, options.command, options.address, options.runs, options.yes) == (
        "trb",
        "submit",
        "auto",
        Path("/shared/runs"),
        False,
    )
    assert (ROOT / options.experiment).is_file()


def test_the_pods_of_kubernetes_share_a_folder_an_image_and_rays_version(
    sweep: dict[str, Any],
) -> None:
    cluster = sweep["rayClusterSpec"]
    assert RAY_VERSION is not None
    assert cluster["rayVersion"] == RAY_VERSION[1]
    assert cluster["authOptions"] == {"mode": "token"}
    pods = [
        group["template"]["spec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    head, worker = (pod["containers"][0] for pod in pods)
    for name in ("image", "env", "volumeMounts"):
        assert head[name] == worker[name]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    mounted = {mount["mountPath"] for mount in head["volumeMounts"]}
    assert "/shared" in mounted
    [shm] = [mount["name"] for mount in head["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    volumes = {volume["name"]: volume for volume in pods[0]["volumes"]}
    assert volumes[shm]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert worker["resources"]["limits"]["nvidia.com/gpu"]


def test_folders_and_address_of_a_job_can_be_given(job: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    done = run(
        job | {"TRB_HOME": str(home), "TRB_RUNS": "/shared/runs", "TRB_HEAD_IP": "10.1.0.7"},
        "paper.yaml",
    )
    assert done.returncode == 0, done.stderr
    assert "--address 10.1.0.7:23456 --runs /shared/runs" in done.stdout
    assert f"in {home}" in done.stdout


def test_scripts_are_free_of_what_shellcheck_finds() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(SBATCH)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
