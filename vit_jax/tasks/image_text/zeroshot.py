"""Zero-shot accuracy during training, on the datasets of a config."""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx
from jax.sharding import Mesh

from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import SubsetConfig
from vit_jax.config.run import Config
from vit_jax.data.arrays import labelled_image
from vit_jax.data.cache import cached
from vit_jax.data.captions import build_captions
from vit_jax.data.loader import batch_spec
from vit_jax.data.sources import open_source
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import other_data
from vit_jax.evaluation.embeddings import EvaluatedImages
from vit_jax.evaluation.prompts import read_class_names, read_templates
from vit_jax.evaluation.zeroshot import evaluate_zero_shot
from vit_jax.parallel.mesh import host_rows
from vit_jax.tasks.image_text.config import ImageTextConfig, ZeroShotDatasetConfig


class ZeroShotEvaluator:
    """Classifies the images of some datasets by the captions of their classes.

    `batch_size` counts images over all hosts. `prefixes` start the names of the metrics.
    """

    def __init__(self, config: Config, graphdef: nnx.GraphDef, mesh: Mesh, batch_size: int):
        self._graphdef, section = graphdef, config.task
        assert isinstance(section, ImageTextConfig)
        self._tokenizer = build_captions(
            config.data.captions.replace(templates=(), feature=None),
            config.model.text,  # pyright: ignore[reportAttributeAccessIssue]
        ).tokenizer
        self._datasets = {
            name: _open(name, dataset, config, mesh, batch_size)
            for name, dataset in section.zeroshot.items()
        }
        self.prefixes = [f"zeroshot/{name}/" for name in self._datasets]

    def __call__(self, params: Any, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns "zeroshot/NAME/METRIC" -> value; None if `stop` ended the evaluation."""
        model: Any = nnx.merge(self._graphdef, params)
        metrics = {}
        for name, (images, class_names, templates) in self._datasets.items():
            with other_data(f"zero-shot dataset {name!r}"):
                found = evaluate_zero_shot(
                    model, self._tokenizer, images, class_names, templates, stop=stop
                )
            if found is None:
                return None
            found["classes"] = float(len(class_names))
            metrics |= {f"zeroshot/{name}/{metric}": value for metric, value in found.items()}
        return metrics


def _open(
    name: str, dataset: ZeroShotDatasetConfig, config: Config, mesh: Mesh, batch_size: int
) -> tuple[EvaluatedImages, Sequence[str], Sequence[str]]:
    """Returns the images of a dataset, the names of its classes, and templates of captions."""
    side = config.data.image_size
    data = config.data.replace(
        source=dataset.source,
        name=dataset.name,
        data_dir=dataset.data_dir or config.data.data_dir,
        subset=SubsetConfig(),
        image_key=dataset.image_key,
        label_key=dataset.label_key,
        label_rule=None,
        captions=CaptionsConfig(),
        num_classes=None,
    )
    with other_data(f"zero-shot dataset {name!r}"):
        source = open_source(data, dataset.split)
        class_names = read_class_names(dataset.class_names, source.class_names)
    templates = tuple(template for prompt in dataset.prompts for template in read_templates(prompt))
    transform = make_eval_transform(side, **data.eval_view)
    preprocessing = labelled_image(transform, side, len(source.class_names))
    spec = batch_spec(data, batch_size, host_rows(mesh, batch_size))
    images = EvaluatedImages(cached(source, data.cache_mb), preprocessing, spec, mesh)
    return images, class_names, templates
