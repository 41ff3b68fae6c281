"""The pure core: keys, search plan, stage tree, cost, and the dispatcher as a state machine.

============  ==========================================================================
module        holds
============  ==========================================================================
``keys``      how a state is named by what made it
``plan``      every trial as one radix tree of value sequences
``tree``      the stage tree, from scratch [Hippo Algorithm 1]
``frontier``  the same tree, kept incrementally, with the order in which to train
``saves``     where a running stage saves its state
``speeds``    measured seconds per step, by model and class of workers
``events``    what the dispatcher is told, and what it tells a runner to do
``attempts``  tries at stages, slots, options
``placing``   which stage runs on which worker next
``market``    which class of workers a stage belongs to, and whether it waits for one
``prices``    what a second on each class is worth to the work that waits
``dispatch``  the dispatcher
``cost``      what a space costs, before anything runs
============  ==========================================================================
"""
