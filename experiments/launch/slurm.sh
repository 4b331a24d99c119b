#!/usr/bin/env bash
# SLURM. Installs the commit and its locks beside the clone, and submits the job; a requeued job
# runs the same commit. Start it on a login node, from the root of the clone:
#   bash experiments/launch/slurm.sh              one process a node, which uses all its GPUs
#   bash experiments/launch/slurm.sh --ntasks-per-node=8 --cpus-per-task=8    one process a GPU
# Options are those of sbatch. With --dry_run before them, it prints what it would do.
# --- edit: what to ask for ------------------------------------------------------------------
#SBATCH --job-name=vit_jax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# --- keep: append to one log; stop, save and go on two minutes before the time is over --------
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

# --- edit: what to run (or set them in the environment); absolute paths, on a shared disk -------
export CONFIG=${CONFIG:-configs/pretrain.py:imagenet2012,B/16}
run=${CONFIG##*configs/}
run=$(tr -cs 'A-Za-z0-9' '-' <<<"${run/.py/}" | tr A-Z a-z) # its name
run=${run#-} run=${run%-}
export WORKDIR=${WORKDIR:-$PWD/runs/$run}
export ARGUMENTS=${ARGUMENTS:---config.data.data_dir=$PWD/DATA}
export PYTHON=${PYTHON:-} # of your own environment: nothing is installed, the clone runs as it is
export REVISION=${REVISION:-} # a full commit; empty: that of the clone

do_() { # the command, or what it would be
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
submit() {
  if [[ ! $PYTHON ]]; then
    command -v uv >/dev/null || [[ $dry_run ]] || {
      echo "error: no uv: install it (pip install uv), or set PYTHON to your environment's" >&2
      exit 2
    }
    REVISION=$(bash experiments/launch/revision.sh)
    [[ $WORKDIR == /* || $WORKDIR == *://* ]] || WORKDIR=$PWD/$WORKDIR
    export CODE=$PWD/.launch/$REVISION
    [[ -d $CODE ]] || do_ git clone --quiet --no-checkout . "$CODE"
    do_ git -C "$CODE" checkout --quiet --detach "$REVISION"
    do_ uv venv -q --allow-existing --managed-python --python 3.13.18 "$CODE/.venv"
    do_ uv pip sync -q --python "$CODE/.venv/bin/python" --require-hashes \
      "$CODE/requirements.lock" "$CODE/requirements-cuda.lock"
  fi
  do_ sbatch "$@" "${BASH_SOURCE[0]}"
}
train() {
  [[ $PYTHON ]] || do_ cd "$CODE" || return
  # 0: when a task is lost, the others end by themselves with the right exit code.
  read -ra arguments <<<"$ARGUMENTS"
  do_ srun --kill-on-bad-exit=0 "${PYTHON:-.venv/bin/python}" -m vit_jax train \
    "--config=$CONFIG" "--workdir=$WORKDIR" "${arguments[@]}"
}

dry_run=''
if [[ ${1:-} == --dry_run ]]; then
  dry_run=1
  grep '^#SBATCH' "${BASH_SOURCE[0]}"
  submit "${@:2}"
  train
  exit
fi
if [[ ! ${SLURM_JOB_ID:-} ]]; then
  submit "$@"
  exit
fi

[[ $PYTHON || ${CODE:-} ]] || {
  echo "error: the job has no commit; run bash slurm.sh outside of any job, not with sbatch" >&2
  exit 2
}
code=0
train || code=$?
# 75: stopped and saved. 76, 134, 137: a process was lost. The next start resumes from a checkpoint.
if [[ $code == 75 || $code =~ ^(76|134|137)$ && ${SLURM_RESTART_COUNT:-0} -lt 10 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
