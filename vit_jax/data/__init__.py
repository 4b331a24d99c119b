"""Input: sources of encoded examples, transforms, and the loader that makes batches of them."""
