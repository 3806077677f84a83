"""A campaign of damaged files and kills against the commands (`make torture`); no test of the suite but for its smoke.

    PYTHONPATH=tests python -m torture [PART ...] [--minutes 10] [--seed 0] [--folder torture-findings]

Each part makes cases from a seed and a number, so that a case can be made again by them alone. A case runs in a forked
process that is watched: what it starts, links, unpickles and writes elsewhere, its time and its memory. See verdict.py
for what is a finding, kills.py for the kills.
"""
