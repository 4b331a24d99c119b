#!/usr/bin/env bash
# Plans every row of the paper's Table 3 on the smallest slice that it is thought to fit, and the
# larger models; adds a row each to plans.csv. No TPU is needed, `pip install 'jax[tpu]'` is. Each
# takes one to three minutes on two quiet cores. Rows that are there already are left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
table=experiments/pod_plans/plans.csv

plan() { # recipe, slice, then anything else that the command takes
    local recipe=$1 topology=$2
    shift 2
    if grep -q "^\"\?configs/$recipe\"\?,$topology," "$table" 2> /dev/null && [ $# -eq 0 ]; then
        return
    fi
    python -m vit_jax plan --config="configs/$recipe" --topology="$topology" --output="$table" "$@"
}

for model in B/16 B/32; do
    plan "pretrain.py:imagenet2012,$model" v5e:4x8
    plan "pretrain.py:imagenet21k,$model" v5e:4x8
    plan "pretrain.py:jft,$model" v5e:4x8
done
for model in L/16 L/32; do
    plan "pretrain.py:imagenet2012,$model" v5e:8x16
    plan "pretrain.py:jft,$model" v5e:8x16
done
plan pretrain.py:imagenet21k,L/16 v5e:16x16
plan pretrain.py:imagenet21k,L/32 v5e:8x16
plan pretrain.py:jft,H/14 v5e:16x16
for model in R50x1 R50x2 R101x1 R152x1 R152x2 R50+B/16 R50+B/32 R50+L/16 R50+L/32; do
    plan "pretrain.py:jft,$model" v5e:16x16
done
plan better_plain_vit.py:90 v5e:2x4
plan augreg.py:B/16,imagenet21k v5e:4x8
