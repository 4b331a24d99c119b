#!/usr/bin/env bash
# Plans every row of the paper's Table 3 on the smallest slice that it is thought to fit, and the
# larger models; adds a row each to plans.csv. No TPU is needed, `pip install 'jax[tpu]'` is. Each
# takes one to three minutes on two quiet cores. Rows that are there already are left out.
#
# `make.sh gpu` makes gpu_plans.csv anew: plans for NVIDIA GPUs, for which it needs no GPU but
# `pip install 'jax[cuda13]'`. Each takes about a minute.
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

gpu_plans() {
    table=experiments/pod_plans/gpu_plans.csv
    rm -f "$table"
    plan pretrain.py:imagenet2012,B/16 h100:8
    # DeiT-III B/16 (arXiv:2204.07118, Table 1): there is no recipe of its own.
    plan pretrain.py:imagenet2012,B/16 h100:8 --config.data.global_batch_size=2048 \
        --config.model.dropout=0.0 --config.model.stochastic_depth=0.2 --config.model.layer_scale=1e-4 \
        --config.model.representation_size=None --config.loss.name=sigmoid_cross_entropy \
        --config.mixing.mixup_alpha=0.8 --config.mixing.cutmix_alpha=1.0 --config.data.augment.three_augment=true \
        --config.data.augment.color_jitter=0.3 --config.optimizer.name=lamb \
        --config.optimizer.weight_decay=0.02 --config.train_epochs=400
    plan better_plain_vit.py:90 h100:8
    plan pretrain.py:imagenet21k,L/16 h100:8x4
    plan pretrain.py:jft,H/14 h200:8 --config.model.remat=full
    plan pretrain.py:jft,H/14 h200:8 --config.accumulation_steps=4
}

if [ "${1:-}" = gpu ]; then
    gpu_plans
    exit
fi

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
