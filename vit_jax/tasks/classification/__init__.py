"""Classification of images: flips, erasing, mixup and CutMix; softmax or sigmoid cross-entropy."""
