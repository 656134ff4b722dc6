"""Other people's libraries, trained in the same runs as our losses.

They live in an environment of their own, which `make peers` builds from `constraints.txt` beside
this file: some of them would otherwise replace torch or bring gigabytes. Nothing here is imported
unless a table asks for it, except for the formulas, which need torch alone.

    formulas        losses of libraries that cannot be installed beside ours, by their papers
    layers          losses that drop into an ordinary training: AP-Perf, torchsort
    libauc          LibAUC's losses with their own optimizers and sampler
    tables          the task of two classes in a table
    lists           the tasks of ranked documents and of embeddings
    cost            what a step takes as the set grows
    first_result    what that takes: lines of code and installed size, of each of `programs/`

A defect of a peer is worked around only if its own documentation does so; the tables name them.
"""
