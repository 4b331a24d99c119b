#!/usr/bin/env bash
# SLURM, one process a node that uses all of its GPUs (the usual choice).
#   sbatch experiments/launch/slurm_per_node.sh          from the repository's root
#   bash experiments/launch/slurm_per_node.sh --dry_run  prints what it would do
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

# --- edit: what to run (or set them in the environment) ---------------------------------------
PYTHON=${PYTHON:-.venv/bin/python}
CONFIG=${CONFIG:-configs/pretrain.py:imagenet2012,B/16}
WORKDIR=${WORKDIR:-runs/b16} # on a disk that all nodes share
ARGUMENTS=${ARGUMENTS:---config.data.data_dir=DATA}

read -ra arguments <<<"$ARGUMENTS"
# 0: when a task is lost, the others end by themselves with the right exit code.
command=(srun --kill-on-bad-exit=0 "$PYTHON" -m vit_jax train
  "--config=$CONFIG" "--workdir=$WORKDIR" "${arguments[@]}")
if [[ ${1:-} == --dry_run ]]; then
  grep '^#SBATCH' "${BASH_SOURCE[0]}"
  printf '%q ' "${command[@]}"
  echo
  exit
fi

code=0
"${command[@]}" || code=$?
# 75: stopped and saved. 76, 134, 137: a process was lost. The next start resumes from a checkpoint.
if [[ $code == 75 || $code =~ ^(76|134|137)$ && ${SLURM_RESTART_COUNT:-0} -lt 10 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
