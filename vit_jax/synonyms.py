"""Other words of the field for config keys, so that an error can name the key that is meant."""

from collections.abc import Iterable

from vit_jax.errors import nearest

# Config key -> what other projects call it. Case, "_" and "-" do not count.
_WORDS = {
    "seed": "random_seed rng_seed rng",
    "model.name": "arch architecture backbone model_name model_type variant patch_size patch",
    "model.width": "hidden_size hidden_dim embed_dim embedding_dim d_model dim",
    "model.depth": "layers num_layers n_layers num_hidden_layers num_blocks",
    "model.mlp_dim": "mlp_ratio intermediate_size ffn_dim dim_feedforward mlp_width",
    "model.num_heads": "heads n_heads nhead nheads num_attention_heads",
    "model.pooling": "pool global_pool pool_type classifier head_type",
    "model.position_embedding": "pos_embed posemb pos_emb position_embeddings pe",
    "model.num_registers": "registers reg_tokens num_register_tokens num_reg_tokens",
    "model.layer_scale": "init_values layerscale",
    "model.qk_norm": "qk_normalization normalize_qk",
    "model.dropout": "drop drop_rate dropout_rate hidden_dropout_prob",
    "model.stochastic_depth": "drop_path drop_path_rate droplayer layer_drop stoch_depth",
    "model.representation_size": "pre_logits",
    "model.remat": "grad_checkpointing gradient_checkpointing rematerialize",
    "model.dtype": "precision amp bf16 half mixed_precision compute_dtype",
    "model.attention_implementation": "attn attn_implementation flash_attention sdpa",
    "data.name": "dataset data_set dataset_name",
    "data.data_dir": "data_path data_root dataset_dir data_folder root dir",
    "data.global_batch_size": "bs batch batch_size train_batch_size per_device_batch_size",
    "data.image_size": "img_size input_size resolution img_resolution image_resolution crop_size",
    "data.num_classes": "n_classes nb_classes classes",
    "data.num_workers": "workers",
    "data.augment.crop.name": "random_resized_crop cropping",
    "data.interpolation": "bicubic resample",
    "data.augment.flip": "hflip horizontal_flip",
    "data.augment.randaugment": "randaug auto_augment aa autoaugment",
    "data.augment.color_jitter": "jitter",
    "data.augment.erasing": "random_erasing reprob cutout",
    "data.augment.mix.mixup_alpha": "mixup",
    "data.augment.mix.cutmix_alpha": "cutmix",
    "optimizer.name": "opt optim optimiser",
    "optimizer.learning_rate": "lr base_lr blr eta max_lr peak_lr",
    "optimizer.weight_decay": "wd l2_regularization",
    "optimizer.schedule.decay": "sched scheduler lr_schedule lr_scheduler schedule_type",
    "optimizer.schedule.warmup_steps": "warmup num_warmup_steps",
    "optimizer.clip_global_norm":
        "clip clip_grad grad_clip grad_clip_norm max_grad_norm gradient_clip_val clip_norm",
    "optimizer.options": "betas beta1 beta2 b1 b2 momentum eps",
    "optimizer.layer_decay": "llrd lr_decay layerwise_decay",
    "optimizer.freeze": "frozen freeze_backbone",
    "train_steps":
        "steps num_steps n_steps max_steps total_steps iterations num_iterations iters niter",
    "train_epochs": "epochs num_epochs n_epochs max_epochs num_train_epochs",
    "accumulation_steps":
        "grad_accum accum_steps gradient_accumulation_steps accumulate_grad_batches accum_iter",
    "ema_decay": "ema model_ema polyak ema_rate",
    "init_from":
        "pretrained checkpoint_path finetune resume load_from weights init_checkpoint ckpt",
    "loss.label_smoothing": "smoothing label_smooth",
    "evaluation.interval_steps": "eval_every eval_interval eval_freq eval_steps val_interval",
    "evaluation.batch_size": "eval_batch_size val_batch_size test_batch_size",
    "checkpoint.interval_steps": "save_every save_interval save_steps ckpt_interval save_freq",
    "checkpoint.keep_last": "keep keep_checkpoints save_total_limit checkpoint_hist max_to_keep",
    "early_stopping.patience_evaluations": "patience early_stop",
    "logging.interval_steps": "log_every log_interval log_freq print_freq logging_steps log_steps",
    "logging.wandb_project": "wandb project",
    "mesh.data": "dp data_parallel gpus devices num_gpus num_devices",
    "mesh.fsdp": "zero fully_sharded shard",
    "mesh.tensor": "tp tensor_parallel model_parallel",
}  # fmt: skip


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


# The last part of a key, for one that is given in the wrong section; then the other words.
_KEYS = {_plain(key.rpartition(".")[2]): key for key in _WORDS if "interval" not in key}
_KEYS |= {_plain(word): key for key, words in _WORDS.items() for word in words.split()}


def key_of_word(word: str) -> str | None:
    """Returns the config key that a word of another project means; None: no such word.

    >>> key_of_word("lr"), key_of_word("img-size"), key_of_word("imagesize"), key_of_word("zzz")
    ('optimizer.learning_rate', 'data.image_size', 'data.image_size', None)
    """
    return _KEYS.get(_plain(word))


def words_of_key(key: str) -> str:
    """Returns the other words for a key, separated by spaces; "" if there are none."""
    return _WORDS.get(key, "")


def meant_name(word: str, names: Iterable[str]) -> str:
    """Returns the name that a word means: the same in other words, or else the most similar one.

    >>> meant_name("imagesize", ["image_size", "layer_scale"])
    'image_size'
    """
    names = list(names)
    leaf = (key_of_word(word) or "").rpartition(".")[2]
    return leaf if leaf in names else nearest(word, names)


def advice(word: str, meant: str) -> str:
    """Returns how to fix an unknown key, which `meant` may replace."""
    if _plain(word) in ("patch", "patchsize"):
        return "the patch size is a part of the model's name: ViT-B/8"
    return f"did you mean '{meant}'?"
