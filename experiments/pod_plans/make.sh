#!/usr/bin/env bash
# Makes plans.csv: the rows of the ViT paper's Table 3, and larger models, on TPU slices. No TPU is
# needed, but `pip install 'jax[tpu]'`. A row takes one to three minutes on two quiet cores.
#
# `make.sh gpu` makes gpu_plans.csv: nodes with NVIDIA GPUs. No GPU is needed, but
# `pip install 'jax[cuda13]'`. A row takes about a minute.
#
# A stopped run leaves new_plans.csv (new_gpu_plans.csv); the next run continues it.
set -euo pipefail
cd "$(dirname "$0")/../.."

made=0
plan() { # recipe, topology, then other arguments of the command
    local recipe=$1 topology=$2
    shift 2
    made=$((made + 1))
    if [ -f "$new" ] && [ "$(tail -n +2 "$new" | wc -l)" -ge "$made" ]; then
        return
    fi
    python -m vit_jax plan --config="configs/$recipe" --topology="$topology" --output="$new" "$@"
}

gpu_plans() {
    plan pretrain.py:imagenet2012,B/16 h100:8
    # DeiT-III B/16 (arXiv:2204.07118, Table 1): there is no recipe of its own.
    plan pretrain.py:imagenet2012,B/16 h100:8 --config.data.global_batch_size=2048 \
        --config.model.dropout=0.0 --config.model.stochastic_depth=0.2 --config.model.layer_scale=1e-4 \
        --config.model.representation_size=None --config.loss.name=sigmoid_cross_entropy \
        --config.data.augment.mix.mixup_alpha=0.8 --config.data.augment.mix.cutmix_alpha=1.0 --config.data.augment.three_augment=true \
        --config.data.augment.color_jitter=true --config.optimizer.name=lamb \
        --config.optimizer.weight_decay=0.02 --config.train_epochs=400
    plan better_plain_vit.py:90 h100:8
    plan pretrain.py:imagenet21k,L/16 h100:8x4
    plan pretrain.py:jft,H/14 h200:8
}

tpu_plans() {
    local g14=(--config.model.name=ViT-g/14 --config.model.representation_size=1408)
    local fsdp=(--config.mesh.data=1 --config.mesh.fsdp=-1)
    plan pretrain.py:imagenet21k,L/16 v5e:16x16
    plan augreg.py:L/16 v5e:4x4 --config.data.global_batch_size=512
    plan augreg.py:L/16 v5e:4x4 --config.data.global_batch_size=512 --config.model.remat=full
    plan augreg.py:L/16 v5e:4x4 --config.data.global_batch_size=512 --config.model.remat=full "${fsdp[@]}"
    plan pretrain.py:jft,H/14 v5p:8x8x8
    plan pretrain.py:jft,H/14 v5e:16x16
    plan pretrain.py:jft,H/14 v5p:8x8x8 "${g14[@]}"
    plan pretrain.py:jft,H/14 v5e:16x16 "${g14[@]}" --config.model.remat=full "${fsdp[@]}"
    local model data
    for model in B/16 B/32; do
        for data in imagenet2012 imagenet21k jft; do
            plan "pretrain.py:$data,$model" v5e:4x8
        done
    done
    for model in L/16 L/32; do
        plan "pretrain.py:imagenet2012,$model" v5e:8x16
        plan "pretrain.py:jft,$model" v5e:8x16
    done
    plan pretrain.py:imagenet21k,L/32 v5e:8x16
    plan better_plain_vit.py:90 v5e:2x4
    plan augreg.py:B/16,imagenet21k v5e:4x8
    for model in R50+B/16 R50+B/32 R50+L/16 R50+L/32 R50x1 R50x2 R101x1 R152x1 R152x2; do
        plan "pretrain.py:jft,$model" v5e:16x16
    done
    plan pretrain.py:jft,R152x2 v5e:16x16 --config.model.remat=full
    plan pretrain.py:jft,R152x2 v5e:16x16 --config.accumulation_steps=2
}

if [ "${1:-}" = gpu ]; then
    table=experiments/pod_plans/gpu_plans.csv new=experiments/pod_plans/new_gpu_plans.csv
    gpu_plans
else
    table=experiments/pod_plans/plans.csv new=experiments/pod_plans/new_plans.csv
    tpu_plans
fi
mv "$new" "$table"
