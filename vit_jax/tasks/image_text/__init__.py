"""Image and text: two towers learn which text belongs to which image."""
