#!/usr/bin/env bash
# A TPU pod slice on Google Cloud: asks for it (queued, spot or not), sets up every worker, trains.
#   bash experiments/launch/tpu_pod.sh create   asks for the slice and waits for it
#   bash experiments/launch/tpu_pod.sh setup    puts the code and its packages on every worker
#   bash experiments/launch/tpu_pod.sh train    runs the command on all workers at once
#   bash experiments/launch/tpu_pod.sh keep     all three, again and again while a spot slice is
#                                               taken away, until the run is finished
#   bash experiments/launch/tpu_pod.sh delete   gives it back
# With --dry_run after it, each prints what it would do.
set -euo pipefail

# --- edit (or set them in the environment) ----------------------------------------------------
NAME=${NAME:-vit-b16}
PROJECT=${PROJECT:-MY_PROJECT}
ZONE=${ZONE:-us-west4-a}
TYPE=${TYPE:-v5litepod-16}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}
SPOT=${SPOT:---spot} # empty: on demand
REPOSITORY=${REPOSITORY:-MY_GIT_URL}
BUCKET=${BUCKET:-gs://MY_BUCKET} # holds the data and the run folders
CONFIG=${CONFIG:-configs/pretrain.py:imagenet2012,B/16}
WORKDIR=${WORKDIR:-$BUCKET/runs/b16}
ARGUMENTS=${ARGUMENTS:---config.data.data_dir=$BUCKET/data}

where=("--project=$PROJECT" "--zone=$ZONE")
do_() { # the command, or what it would be
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
on_all() {
  do_ gcloud compute tpus tpu-vm ssh "$NAME" "${where[@]}" --worker=all --command="$1"
}
state() {
  gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" --format='value(state.state)'
}
create() {
  do_ gcloud compute tpus queued-resources create "$NAME" "${where[@]}" "--node-id=$NAME" \
    "--accelerator-type=$TYPE" "--runtime-version=$RUNTIME" ${SPOT:+"$SPOT"}
  [[ $dry_run ]] && return
  until [[ $(state) == ACTIVE ]]; do sleep 60; done
}
setup() {
  on_all "set -e
[ -d vit_jax ] || git clone $REPOSITORY vit_jax
cd vit_jax && git pull --ff-only && python3 -m venv .venv
.venv/bin/pip install -q -r requirements.txt gcsfs -U 'jax[tpu]'"
}
train() { # JAX finds the other workers by the pod's own metadata.
  on_all "cd vit_jax && .venv/bin/python -m vit_jax train --config=$CONFIG --workdir=$WORKDIR $ARGUMENTS"
}
delete() {
  do_ gcloud compute tpus queued-resources delete "$NAME" "${where[@]}" --force --quiet
}
keep() {
  if [[ $dry_run ]]; then
    echo "until the run is finished:"
    create && setup && train
    return
  fi
  while true; do
    [[ $(state 2>/dev/null || true) == ACTIVE ]] || {
      delete 2>/dev/null || true
      create
      setup
    }
    code=0
    train || code=$?
    [[ $code == 0 || $code == 2 ]] && exit "$code" # finished, or something to mend
    sleep 60
  done
}

dry_run=''
[[ ${2:-} == --dry_run || ${1:-} == --dry_run ]] && dry_run=1
case ${1:-} in
  create | setup | train | keep | delete) "$1" ;;
  --dry_run) keep ;;
  *) sed -n '2,9s/^# \?//p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
