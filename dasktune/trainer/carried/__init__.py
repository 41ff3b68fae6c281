"""The variables that a training function hands from one turn of its loop to the next.

A function begins anew in each process and runs up to its loop. What its loop has changed since
then must come from the state:

- a variable that the loop sets, and that a later turn reads before it sets it again
  (``best = min(best, loss)``), is *carried*: it is in each state;
- a list, an array or another value that the loop changes in place (``losses.append(loss)``) is in
  a state if it is not what it was when the loop began.

`LoopVariables` finds both, refuses what no state can hold, and writes the saved values into the
paused function. Values keep their identity: two variables for one list are for one list again.
"""

from dasktune.trainer.carried.variables import LoopVariables

__all__ = ["LoopVariables"]
