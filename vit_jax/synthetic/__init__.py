"""Synthetic tasks: what attention can learn that convolution cannot.

`convolution` is a task for attention, `tasks` has those on which it is compared with CNNs,
`networks` the models, `constructed` weights set by hand, `fit` trains, `measure` scores.
"""
