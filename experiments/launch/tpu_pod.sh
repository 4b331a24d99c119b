#!/usr/bin/env bash
# A TPU pod slice on Google Cloud: asks for it (queued, spot or not), sets up every worker, trains.
#   bash experiments/launch/tpu_pod.sh create   asks for the slice and waits for it
#   bash experiments/launch/tpu_pod.sh setup    puts the code and its packages on every worker
#   bash experiments/launch/tpu_pod.sh train    starts the run on all workers and returns
#   bash experiments/launch/tpu_pod.sh watch    follows the log of worker 0
#   bash experiments/launch/tpu_pod.sh keep     create, setup and train, again and again while a
#                                               spot slice is taken away, until the run has ended;
#                                               exits with the run's code. The slice stays
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

PAUSE_S=${PAUSE_S:-60} # between looks at the slice and at the run

where=("--project=$PROJECT" "--zone=$ZONE")
check_settings() {
  local setting
  for setting in PROJECT REPOSITORY BUCKET; do
    [[ ${!setting} == *MY_* ]] || continue
    echo "$setting is ${!setting}: set it in the environment, or edit tpu_pod.sh" >&2
    [[ $dry_run ]] || exit 2
  done
}
do_() { # the command, or what it would be
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
on_worker() { # WORKER COMMAND
  do_ gcloud compute tpus tpu-vm ssh "$NAME" "${where[@]}" "--worker=$1" --command="$2"
}
state() {
  gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" --format='value(state.state)' ||
    true
}
create() {
  do_ gcloud compute tpus queued-resources create "$NAME" "${where[@]}" "--node-id=$NAME" \
    "--accelerator-type=$TYPE" "--runtime-version=$RUNTIME" ${SPOT:+"$SPOT"}
  [[ $dry_run ]] && return
  local now
  while now=$(state) && [[ $now != ACTIVE ]]; do
    [[ $now != FAILED ]] || {
      echo "the request for $NAME has failed: delete it, and try another ZONE, TYPE or SPOT=" >&2
      return 1
    }
    sleep "$PAUSE_S"
  done
}
setup() { # The images of TPU VMs have Python 3.10; uv brings a newer one.
  on_worker all "set -e
[ -d vit_jax ] || git clone $REPOSITORY vit_jax
cd vit_jax && git pull --ff-only
python3 -m pip install -q --user uv
~/.local/bin/uv venv -q --allow-existing --python 3.12 .venv
~/.local/bin/uv pip install -q --python .venv/bin/python -r requirements.txt gcsfs 'jax[tpu]'"
}
train() { # JAX finds the other workers by the pod's own metadata. A run that goes on is left alone.
  on_worker all "cd vit_jax && nohup setsid flock -n train.lock bash -c \
'rm -f exit_code
.venv/bin/python -m vit_jax train --config=$CONFIG --workdir=$WORKDIR $ARGUMENTS
echo \$? > exit_code' >> train.log 2>&1 < /dev/null &"
}
watch() {
  on_worker 0 'tail -n 20 -F vit_jax/train.log'
}
delete() {
  do_ gcloud compute tpus queued-resources delete "$NAME" "${where[@]}" --force --quiet
}
wait_for_end() { # Prints the exit code of the run; nothing if the slice is gone.
  local code
  while [[ $(state) == ACTIVE ]]; do
    code=$(on_worker 0 'cat vit_jax/exit_code 2>/dev/null || true' || true)
    [[ $code ]] && echo "$code" && return
    sleep "$PAUSE_S"
  done
}
keep() {
  if [[ $dry_run ]]; then
    echo "until the run has ended:"
    create && setup && train
    return
  fi
  local code
  while true; do
    [[ $(state 2>/dev/null) == ACTIVE ]] || {
      delete 2>/dev/null || true
      create
      setup
    }
    train
    code=$(wait_for_end)
    [[ $code == 0 || $code == 2 ]] && exit "$code" # finished, or an error to fix
    sleep "$PAUSE_S"
  done
}

dry_run=''
[[ ${2:-} == --dry_run || ${1:-} == --dry_run ]] && dry_run=1
case ${1:-} in
  create | setup | train | watch | keep | delete) check_settings && "$1" ;;
  --dry_run) check_settings && keep ;;
  *) sed -n '2,12s/^# \?//p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
