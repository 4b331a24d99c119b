"""Tables, plots and an HTML page from run folders.

`runs` reads run folders. `frame` makes a data frame with one row per run. `tables`, `plots` and
`curves` group and draw it, and `content` puts the report together. To add a column, write a
function of a run and add a line to `frame.COLUMNS`.
"""
