"""What happens after training steps: a file each, called in the order of `train.loop`."""
