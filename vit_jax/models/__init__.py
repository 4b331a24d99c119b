"""Models. Each file holds one family or one kind of layer; `registry` builds a model by name."""
