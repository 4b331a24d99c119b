"""Packs images and kills itself: killed_pack.py IMAGES DATA_DIR AFTER_IMAGES SHARD_MB."""

import os
import signal
import sys

from vit_jax.data.prepare import pack as module
from vit_jax.data.sources.listing import list_images
from vit_jax.storage.paths import user_path


def main(images, data_dir, after, shard_mb):
    real, count = module.encode_record, 0

    def encode(*args):
        nonlocal count
        count += 1
        if count > int(after):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    module.encode_record = encode
    options = module.PackOptions(name="photos", shard_mb=float(shard_mb))
    module.pack(list_images(user_path(images)), user_path(data_dir), options)


if __name__ == "__main__":
    main(*sys.argv[1:])
