#!/usr/bin/env bash
# Several TPU slices on GKE, through xpk (pip install xpk): a cluster once, then workloads on it.
#   bash experiments/launch/xpk.sh cluster    makes the cluster
#   bash experiments/launch/xpk.sh train      runs the command on every host of every slice
#   bash experiments/launch/xpk.sh delete     ends the workload
# With --dry_run after it, each prints what it would do.
set -euo pipefail

# --- edit (or set them in the environment) ----------------------------------------------------
CLUSTER=${CLUSTER:-vit-jax}
WORKLOAD=${WORKLOAD:-vit-l16}
PROJECT=${PROJECT:-MY_PROJECT}
ZONE=${ZONE:-us-west4-a}
TYPE=${TYPE:-v5litepod-256}
SLICES=${SLICES:-2}
RESTARTS=${RESTARTS:-50} # spot slices are taken away; the run goes on by itself
IMAGE=${IMAGE:-python:3.12}
BUCKET=${BUCKET:-gs://MY_BUCKET} # holds the data and the run folders
CONFIG=${CONFIG:-configs/pretrain.py:imagenet21k,L/16}
WORKDIR=${WORKDIR:-$BUCKET/runs/l16}
ARGUMENTS=${ARGUMENTS:---config.data.data_dir=$BUCKET/data}

where=("--cluster=$CLUSTER" "--project=$PROJECT" "--zone=$ZONE")
command="pip install -q -r requirements.txt gcsfs -U 'jax[tpu]' && \
python -m vit_jax train --config=$CONFIG --workdir=$WORKDIR $ARGUMENTS"

do_() { # the command, or what it would be
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
dry_run=''
[[ ${2:-} == --dry_run ]] && dry_run=1
case ${1:-} in
  cluster)
    do_ xpk cluster create "${where[@]}" "--tpu-type=$TYPE" "--num-slices=$SLICES" --spot
    ;;
  train)
    do_ xpk workload create "--workload=$WORKLOAD" "${where[@]}" "--tpu-type=$TYPE" \
      "--num-slices=$SLICES" "--max-restarts=$RESTARTS" --restart-on-exit-codes=75,76,134 \
      "--base-docker-image=$IMAGE" --script-dir=. "--command=$command"
    ;;
  delete) do_ xpk workload delete "--workload=$WORKLOAD" "${where[@]}" ;;
  *) sed -n '2,6s/^# \?//p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
