"""Tables, plots and an HTML page from run folders.

`runs` reads run folders, and `columns` computes figures of a run. `frame` makes a data frame with
one row per run, and from it observations: one row per run and metric. `scores` groups observations
into means, `tables`, `plots` and `curves` show them, `suggest` chooses what to show if nobody asked
for anything, and `content` puts the report together. To add a column, see `columns`.
"""
