"""The same input pipeline in tf.data, as a worker process of `bench.feed`.

Its argument is a request as JSON. When it is ready it prints {}, or {"error": ...} if it cannot
run. Then, for each line of stdin with a number of seconds, it measures that long and prints
{"images_per_second": ...}. Decoding is fused with the crop and resizing is bilinear without
antialiasing, as in big_vision. No other module imports this file or TensorFlow.
"""

# pyright: reportMissingImports=false
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answers requests until stdin closes."""
    request = json.loads(sys.argv[1])
    try:
        batches = iter(_build_dataset(request))
        next(batches)
    except Exception as error:  # The caller reports the error and continues.
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
        return
    print("{}", flush=True)
    for line in sys.stdin:
        for _ in range(4):  # Batches that were prefetched before the clock starts.
            next(batches)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < float(line):
            next(batches)
            count += request["batch_size"]
        rate = count / (time.perf_counter() - begin)
        print(json.dumps({"images_per_second": rate}), flush=True)


def _build_dataset(request: dict[str, Any]) -> Any:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import numpy as np
    import tensorflow as tf

    with np.load(request["examples"], allow_pickle=False) as stored:
        joined, sizes = stored["joined"].tobytes(), stored["sizes"]
    ends = np.cumsum(sizes)
    examples = [joined[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    size, min_area = request["image_size"], request["min_area"]

    def load(encoded: Any) -> Any:
        shape = tf.io.extract_jpeg_shape(encoded)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(min_area, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        top, left, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(extent)
        box = tf.stack([top, left, height, width])
        image = tf.io.decode_and_crop_jpeg(encoded, box, channels=3)
        image = tf.image.resize(image, (size, size), "bilinear")
        image = tf.image.random_flip_left_right(image)
        return tf.cast(image, tf.uint8)

    data = tf.data.Dataset.from_tensor_slices(examples).repeat()
    data = data.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = request["threads"]
    return data.batch(request["batch_size"]).prefetch(4).with_options(options).as_numpy_iterator()


if __name__ == "__main__":
    main()
