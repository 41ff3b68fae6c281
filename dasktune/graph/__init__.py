"""The pure core: keys, search plan, stage tree, cost, and the dispatcher as a state machine.

============  ==========================================================================
module        holds
============  ==========================================================================
``keys``      how a state is named by what made it
``plan``      every trial as one radix tree of value sequences
``tree``      the stage tree, from scratch [Hippo Algorithm 1]
``frontier``  the same tree, kept incrementally, with the order in which to train
``saves``     where a running stage saves its state
``speeds``    measured seconds per step
``events``    what the dispatcher is told, and what it tells a runner to do
``attempts``  tries at stages, slots, options
``placing``   which stage runs on which worker next
``dispatch``  the dispatcher
``cost``      what a space costs, before anything runs
============  ==========================================================================
"""
