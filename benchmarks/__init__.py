"""The benchmarks measure what metricgrad claims about itself, with its public names only.

A table (`tables/NAME.toml`) names a task. A task is a module of this package with one function:

    run(settings, seed, folder, known) -> result

`settings` are the merged settings of a row and a column. `seed` is for everything random. `folder`
holds the data sets. `known` has the trials of an earlier report whose grid was smaller; only
`classification` uses them. The result is a dictionary that is stored as JSON. It has one test
`value`, or several `values` by name.
"""
