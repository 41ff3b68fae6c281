"""The first import of the fork server: nothing is garbage while it imports.

Python would look through all modules again and again, for a third of the time.
"""

import gc

gc.disable()
