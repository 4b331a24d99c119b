"""Packs images and kills itself: killed_pack.py IMAGES DATA_DIR AFTER_IMAGES SHARD_MB."""

import os
import signal
import sys

from vit_jax.data.prepare import pack as module
from vit_jax.data.sources.listing import list_images
from vit_jax.storage.paths import user_path

real, count = module.encode_record, 0


def encode(*args):
    global count
    count += 1
    if count > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)


module.encode_record = encode
options = module.PackOptions(name="photos", shard_mb=float(sys.argv[4]))
module.pack(list_images(user_path(sys.argv[1])), user_path(sys.argv[2]), options)
