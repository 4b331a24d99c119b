#!/usr/bin/env bash
# A TPU slice on Google Cloud by gcloud alone; tpu.yaml also starts it again after a preemption.
#   bash experiments/launch/tpu_pod.sh create   asks for the slice (queued) and waits for it
#   bash experiments/launch/tpu_pod.sh setup    puts the commit and its locks on every worker
#   bash experiments/launch/tpu_pod.sh train    starts the run on all workers and returns
#   bash experiments/launch/tpu_pod.sh watch    follows the log of worker 0, with the exit code
#   bash experiments/launch/tpu_pod.sh delete   gives the slice back; nothing else deletes it
# With --dry_run after it, each prints what it would do.
set -euo pipefail

# --- edit (or set them in the environment) ----------------------------------------------------
PROJECT=${PROJECT:-MY_PROJECT}
ZONE=${ZONE:-us-central1-a} # of the bucket's region. In us-west4, spot v5e costs twice as much
TYPE=${TYPE:-v5litepod-16}
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}
SPOT=${SPOT---spot} # empty: on demand
REPOSITORY=${REPOSITORY:-MY_GIT_URL}
BUCKET=${BUCKET:-gs://MY_BUCKET} # holds the data and the run folders
CONFIG=${CONFIG:-configs/pretrain.py:imagenet2012,B/16}
run=${CONFIG##*configs/}
run=$(tr -cs 'A-Za-z0-9' '-' <<<"${run/.py/}" | tr A-Z a-z) # its name
run=${run#-} run=${run%-}
NAME=${NAME:-$run} # of the slice
WORKDIR=${WORKDIR:-$BUCKET/runs/$run}
ARGUMENTS=${ARGUMENTS:---config.data.data_dir=$BUCKET/data}
REVISION=${REVISION:-} # a full commit; empty: that of the run's first setup, which is the clone's

PAUSE_S=${PAUSE_S:-60} # between looks at the request
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
where=("--project=$PROJECT" "--zone=$ZONE")
check_settings() {
  local setting
  for setting in CONFIG WORKDIR ARGUMENTS; do # They pass through two shells.
    [[ ${!setting} != *\'* && ($setting == ARGUMENTS || ${!setting} != *\ *) ]] || {
      echo "$setting is ${!setting}: it must have no quotes, CONFIG and WORKDIR no spaces" >&2
      exit 2
    }
  done
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
create() {
  do_ gcloud compute tpus queued-resources create "$NAME" "${where[@]}" "--node-id=$NAME" \
    "--accelerator-type=$TYPE" "--runtime-version=$RUNTIME" ${SPOT:+"$SPOT"}
  [[ $dry_run ]] && return
  local state=''
  while [[ $state != ACTIVE ]]; do
    if [[ $state =~ ^(FAILED|SUSPEND|DELET) ]]; then # SUSPENDED: a spot slice was taken away
      echo "the request for $NAME is $state: run delete, then create, perhaps in another ZONE" >&2
      return 1
    fi
    sleep "$PAUSE_S"
    # Without an answer the state is unknown, and the slice may be there: go on waiting.
    state=$(gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" \
      --format='value(state.state)') || state=unknown
  done
}
setup() { # The images of TPU VMs have Python 3.10; uv brings a newer one.
  local kept # The run keeps its commit when HEAD moves.
  kept=.launch/$(cksum <<<"$WORKDIR" | tr ' ' -).revision
  [[ $REVISION || ! -s $kept ]] || REVISION=$(<"$kept")
  REVISION=$(REVISION=$REVISION bash experiments/launch/revision.sh)
  echo "installing $REVISION, the commit of $WORKDIR (REVISION=... changes it)" >&2
  on_worker all "set -e
export PATH=\"\$HOME/.local/bin:\$PATH\"
[ -d vit_jax ] || git clone -q $REPOSITORY vit_jax
cd vit_jax
git fetch -q origin
git checkout -q --detach $REVISION
command -v uv || curl -LsSf https://astral.sh/uv/0.13.9/install.sh | sh
uv venv -q --allow-existing --managed-python --python 3.13.18 .venv
uv pip sync -q --python .venv/bin/python --require-hashes requirements.lock requirements-tpu.lock"
  [[ $dry_run ]] || { mkdir -p .launch && echo "$REVISION" >"$kept"; }
}
train() { # JAX finds the other workers by the pod's metadata. A second train does not start again.
  # No `&&` before nohup: its subshell would keep the connection open until the run ends.
  on_worker all "cd vit_jax || exit
nohup setsid flock -n train.lock bash -c \
'.venv/bin/python -m vit_jax train --config=$CONFIG --workdir=$WORKDIR $ARGUMENTS
echo exit code \$?' >> train.log 2>&1 < /dev/null &"
}
watch() {
  on_worker 0 'tail -n 20 -F vit_jax/train.log'
}
delete() {
  do_ gcloud compute tpus queued-resources delete "$NAME" "${where[@]}" --force --quiet
}

dry_run=''
[[ ${2:-} == --dry_run ]] && dry_run=1
case ${1:-} in
  create | setup | train | watch | delete) check_settings && "$1" ;;
  *) sed -n '2,8s/^# \?//p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
