"""Zero-shot classification: the class whose captions are most similar to an image.

Source: arXiv:2103.00020, section 3.1; the mean over templates is section 3.1.4.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float

from vit_jax.config.captions import check_templates
from vit_jax.data.captions import fill
from vit_jax.data.device import to_unit_range
from vit_jax.data.tokenizers import Tokenizer
from vit_jax.evaluation.classification import (
    PredictionTotals,
    example_outputs,
    prediction_metrics,
    predictions_of_batch,
)
from vit_jax.evaluation.embeddings import EvaluatedImages, compiled, embed_texts
from vit_jax.evaluation.loop import StoppedError
from vit_jax.evaluation.measure import measure
from vit_jax.models.two_towers import TwoTowers

# Texts whose embeddings are held at a time.
_TEXTS_AT_ONCE = 1 << 14


def evaluate_zero_shot(
    model: TwoTowers,
    tokenizer: Tokenizer,
    images: EvaluatedImages,
    class_names: Sequence[str],
    templates: Sequence[str],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Returns accuracy_top1, accuracy_top5 (with more than five classes), examples and, if any,
    skipped_examples.

    The model's parameters are on the devices of the mesh. `class_names` has one name for each class
    of the source, in label order, as it stands in a caption. `stop` is called before each batch; if
    it ends the evaluation, the result is None.
    """
    batch_size = images.spec.global_batch_size
    classes = class_embeddings(model, tokenizer, class_names, templates, images.mesh, batch_size)
    step, params = compiled(model, images.mesh, _step_fn)
    totals = PredictionTotals(prediction_metrics(len(class_names)))
    run = functools.partial(step, params, classes=classes)
    sizes: Any = {"spec": images.spec, "mesh": images.mesh}
    try:
        found = measure(images.source, images.preprocessing, run, totals, **sizes, stop=stop)
    except StoppedError:
        return None
    # The loss of a softmax over prompts is not what any of these models is trained with.
    return {name: value for name, value in found.items() if name != "loss"}


def class_embeddings(
    model: TwoTowers,
    tokenizer: Tokenizer,
    class_names: Sequence[str],
    templates: Sequence[str],
    mesh: Any,
    batch_size: int,
) -> Float[np.ndarray, "C E"]:
    """Returns an embedding for each class: the normalised mean over its normalised captions.

    `templates` have {} for the name.
    """
    check_templates(templates or ("",))
    count = len(templates)
    sums = np.zeros((len(class_names), model.embedding_size), np.float32)
    at_once = max(_TEXTS_AT_ONCE // count, 1)
    for start in range(0, len(class_names), at_once):
        names = class_names[start : start + at_once]
        texts = [fill(template, name) for name in names for template in templates]
        found = embed_texts(model, tokenizer, texts, mesh, batch_size)
        sums[start : start + len(names)] = found.reshape(len(names), count, -1).mean(1)
    return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)


def _step_fn(graphdef: Any) -> Any:
    def step_fn(params: Any, batch: dict[str, jax.Array], classes: jax.Array) -> dict[str, Any]:
        model = nnx.merge(graphdef, params)
        logits = model.logits(model.encode_image(to_unit_range(batch["image"])), classes)
        loss = optax.softmax_cross_entropy_with_integer_labels
        predictions = predictions_of_batch(logits, batch, loss)
        return example_outputs(predictions, prediction_metrics(predictions.num_classes))

    return step_fn
