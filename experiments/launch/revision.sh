#!/usr/bin/env bash
# Prints the full commit that a launch installs elsewhere: REVISION if it is set, else that of this
# clone. Then it is an error if files have changed since the commit, or if no remote branch has it.
#   REVISION=$(bash experiments/launch/revision.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() { # GOT EXPECTED FIX
  echo "error: $1; expected $2; $3" >&2
  exit 2
}
if [[ ${REVISION:-} ]]; then
  [[ $REVISION =~ ^[0-9a-f]{40}$ ]] ||
    fail "REVISION is $REVISION" "a full commit of 40 digits" "run git rev-parse $REVISION"
  echo "$REVISION"
  exit
fi
revision=$(git rev-parse --verify --quiet HEAD) ||
  fail "this folder is no git clone" "one with a commit" "clone the repository, or set REVISION"
# Settings of launch files, and untracked files elsewhere, such as notes, do not change a run.
changed=$(git status --porcelain --untracked-files=no -- . ':!experiments/launch' &&
  git status --porcelain -- vit_jax configs)
[[ ! $changed ]] || fail "files have changed: $(head -n 1 <<<"$changed" | cut -c4-)" \
  "what is committed, because a launch installs a commit" "commit and push, or set REVISION"
[[ $(git branch --remotes --contains "$revision") ]] || fail "no remote branch has $revision" \
  "a commit that other machines can fetch" "run git push, or set REVISION"
echo "$revision"
