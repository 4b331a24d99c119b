"""The commands of `python -m vit_jax`. Each module has `add_arguments` and `run`."""

# Command -> its line in `--help`.
COMMANDS = {
    "train": "train a model, or resume a run",
    "sweep": "run many training jobs and select the best",
    "runs": "list runs: state, step, score, time left",
    "eval": "evaluate the checkpoint of a run folder",
    "fewshot": "evaluate frozen features: few-shot, kNN, linear probe",
    "config": "list, search and compare config keys and recipes",
    "completion": "print shell completion for bash or zsh",
    "checkpoint": "show a checkpoint: arrays, config, git revision",
    "data": "list, inspect, check, pack and convert datasets",
    "predict": "classify images",
    "analyze": "visualize a model: filters, positions, attention",
    "models": "list the models, their sizes and costs",
    "convert": "convert weights to the format of another project",
    "report": "make tables, plots and a page from run folders",
    "plan": "estimate memory and step time on a TPU, without one",
    "bench": "measure speed on this machine",
}
