"""A campaign of bad input and faults: `make campaign`, or `python -m tools.campaign`.

Tests hold the laws that we thought of. The campaign goes looking for what we did not think of, with
random input and random moments, seeded and in numbers that tests have no time for:

    sets.py        fuzzed sets, every metric against formulas written again (`references.py`)
    losses.py      every loss on hostile sets; memory over many steps
    functions.py   users' functions in odd but legal styles: right, or refused
    faults.py      SIGKILL at random moments, a full disk, read-only folders, two processes at once
    files.py       flipped and truncated bytes in every file that is read
    tables.py      CSV and Parquet files that no one would write on purpose
    budgets.py     whether a time budget holds

A theme is a function `cases(size, seed)`, and a case (`case.py`) ends as "ok" or "failed: what".
Every case has a process of its own, so a crash, an endless loop or a leak ends that case only.
The table `tests/campaign.md` lists what was tried and what failed (`__main__.py`).
"""
