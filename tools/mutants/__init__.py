"""Checks that the tests of a package notice mistakes: `make mutants`, or `python -m tools.mutants`.

Seeded mutants of a package (`sites.py`) are run one by one against the tests that execute the
changed line (`project.py`, `children.py`). A mutant that no test notices survives. The table
`tests/mutants.md` lists the survivors and says why each of them may (`__main__.py`).

mutmut and cosmic-ray draw no seeded sample and do not limit the tests of a mutant by time, which
a package whose tests take minutes needs. Here every test file runs
once under coverage, which records the lines and the time of each test. A parent process then
imports torch and scikit-learn once and forks a child for every mutant; the child imports the
package with one module changed in memory and runs at most a minute of tests, fastest first.
A test that starts another Python process does not see the mutant there.
"""
